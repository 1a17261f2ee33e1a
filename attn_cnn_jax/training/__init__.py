"""Training: how a run begins, its data feed, optimizer, step, evaluation, the loop, and what it reports."""
