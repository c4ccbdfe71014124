"""Yes-or-no questions about dialogues that are over."""
