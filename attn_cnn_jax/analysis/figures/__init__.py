"""The paper's figures from run directories; one module per family."""

NAMES = ("scheme", "curves", "training", "course", "centres", "maps", "pictures", "span", "parabolas")
OF_ONE_LAYER = {"scheme", "training", "span"}
PAPERS_LAYER = 4  # whose training figure 3 shows
ORDERS = {"distance": "heads from near to far", "position": "heads by position", "index": "heads by number"}
