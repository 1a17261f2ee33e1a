"""What a trained network learned: statistics of its heads, convolutions in place of attention, figures; its FLOPs."""
