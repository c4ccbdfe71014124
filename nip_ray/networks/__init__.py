"""Pieces that several scenarios share: graph networks, masked transformers, heads, initialisation. Imports torch
only."""
