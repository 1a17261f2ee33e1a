"""How a model learns: optimizer, step, loop, checkpoints, metrics."""
