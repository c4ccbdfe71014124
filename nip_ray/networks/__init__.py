"""Parts of networks that several scenarios share: graph networks, masked transformers, heads, initialisation. Torch
only."""
