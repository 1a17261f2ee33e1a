"""Attacks on training runs, fuzzing of inputs, memory over time."""
