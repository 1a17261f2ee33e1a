"""A run directory: its configuration, checkpoints, metrics and positions; and a run that is read back from it."""
