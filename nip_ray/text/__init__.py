"""Language agents: chat clients, fine-tuning, exactly-once bookkeeping, and the trainers built on them."""
