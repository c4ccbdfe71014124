"""What other tools read of a run: Inspect's logs of evaluations, and folders for the Hugging Face Hub."""
