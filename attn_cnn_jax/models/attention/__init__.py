"""Self-attention over pixels: the layer, its implementations, scores and shifts."""
