"""Exports of runs for other tools: Inspect's evaluation logs, and folders for the Hugging Face Hub."""
