"""An experiment from start to end: the run folder, atomic and verified checkpoints, the metrics file, and resuming."""
