"""Prompts of judges: a template for each, their common system prompt, and `render`, which fills them."""
