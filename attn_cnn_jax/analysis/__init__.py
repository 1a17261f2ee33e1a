"""What a trained network learned: statistics of its heads, convolutions in place of attention, figures; its FLOPs."""

TEST_IMAGES = 1000  # that accuracy with convolutions in place of attention is measured on, where there are as many
SUBSTITUTES = {  # of a layer of attention, in words
    "zeros": "zeros beyond the border",
    "edge": "edge pixels repeated",
    "truncated": "own attention, truncated",
}
