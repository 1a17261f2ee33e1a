"""Weights from elsewhere, and back."""
