"""Prompts of judges: one template for each, the system prompt that all share, and `render`, which fills them."""
