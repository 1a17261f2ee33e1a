"""Training: how a run begins, its data feed, optimizer, step, evaluation, the loop, and what it reports."""

HEARTBEAT_TIMEOUT = 30  # seconds without a sign of life after which JAX ends the processes that are left
