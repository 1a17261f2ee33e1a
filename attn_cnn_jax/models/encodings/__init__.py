"""How a score knows about positions: one file an encoding, and the registry."""
