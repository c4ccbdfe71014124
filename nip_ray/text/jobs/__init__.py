"""Fine-tuning jobs, each made exactly once."""
