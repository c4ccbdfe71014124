"""Hironaka's polyhedra game: thousands of games as one tensor, scripted players, matches between them, and resolution
trees."""
