"""A small game of messages for small MLPs: fast enough for tests and for measuring the cost of play and learning."""
