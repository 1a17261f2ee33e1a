"""What a run directory holds: configuration, checkpoints, metrics, positions; and a run read back."""
