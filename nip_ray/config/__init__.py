"""Configs of experiments: pydantic models that map one to one to YAML, `--set a.b=c`, checks that refuse illegal
combinations with a reason, and the JSON schema for editors. Imports only pydantic and yaml at module level."""
