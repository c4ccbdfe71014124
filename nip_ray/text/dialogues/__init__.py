"""Hold many dialogues at once, and store them."""
