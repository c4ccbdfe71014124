"""Yes-or-no questions about finished dialogues."""
