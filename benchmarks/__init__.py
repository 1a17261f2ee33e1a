"""Measurements beside each other in one run: medians and ratios, never absolute times alone."""
