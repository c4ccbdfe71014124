"""Learning of language agents: expert iteration and MALT, stage by stage."""
