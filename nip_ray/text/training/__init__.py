"""How language agents learn: expert iteration and MALT, stage by stage."""
