"""Hironaka's polyhedra game: batches of games as one tensor, scripted players, matches, and resolution trees."""
