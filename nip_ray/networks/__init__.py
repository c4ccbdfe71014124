"""Parts of networks shared by scenarios: graph networks, masked transformers, heads, initialisation. Torch only."""
