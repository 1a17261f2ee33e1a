"""Compiles training for accelerators that this machine does not have, and reads what XLA made of it."""
