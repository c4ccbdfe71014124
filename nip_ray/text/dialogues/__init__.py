"""Holding many dialogues at once, and keeping what was said."""
