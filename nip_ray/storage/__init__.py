"""Storage: run folders, atomic checkpoints, copies in object stores."""
