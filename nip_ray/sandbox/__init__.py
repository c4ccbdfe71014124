"""Run programs: trusted ones under limits, others isolated from the machine; docs/sandbox.md describes the levels."""
