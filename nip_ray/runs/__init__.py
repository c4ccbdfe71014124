"""An experiment from start to end: the run folder, checkpoints that are written whole or not at all and verified when
read, the metrics file, and resuming."""
