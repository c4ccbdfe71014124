"""State tracking: where does a chain of permutations lead? One pass cannot follow a long chain, but checking one move
is easy."""
