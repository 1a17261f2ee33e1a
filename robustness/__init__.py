"""Attacks on real training processes: `python -m robustness`."""
