"""Costs of calls and jobs, and their limits."""
