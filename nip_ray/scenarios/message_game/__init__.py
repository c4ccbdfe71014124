"""A small game of messages for small MLPs: quick enough for tests and for measuring what play and learning cost by
themselves."""
