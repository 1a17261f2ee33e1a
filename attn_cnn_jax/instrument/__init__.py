"""How convolutional is a network? Reads the attention of any network over a grid of patches, and reports."""
