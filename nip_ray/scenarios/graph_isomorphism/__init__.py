"""Are two graphs isomorphic? The prover knows, the verifier can only ask about single nodes. Exact Weisfeiler-Leman
scores, the data set generator and loaders, and the networks that play."""
