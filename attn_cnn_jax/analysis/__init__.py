"""What a trained model learned, and what it costs."""
