"""Running programs: trusted ones under limits, others isolated from the machine. docs/sandbox.md says what each level
holds."""
