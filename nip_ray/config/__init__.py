"""What an experiment is: pydantic models that map one to one to YAML, `--set a.b=c`, the checks that refuse illegal
combinations with a reason, and the JSON schema for editors. Imports pydantic and yaml, and nothing heavy at module
level."""
