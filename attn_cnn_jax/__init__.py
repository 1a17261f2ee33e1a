"""Classifiers made of self-attention alone, with relative position encodings (arXiv 1911.03584)."""
