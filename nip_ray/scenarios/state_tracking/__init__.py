"""State tracking: where does a chain of permutations lead? One pass cannot follow a long chain, and one move is checked
at a glance."""
