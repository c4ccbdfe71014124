"""What lies on disk: run folders, checkpoints that are written whole or not at all, copies in object stores."""
