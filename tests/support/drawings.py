"""Digits as people draw them: twelve shapes, ten versions of each, none of which a network was trained on."""

import numpy as np


def arc(x, y, width, height, first, last):
    """Places on part of an ellipse: its centre, radii, and angles in degrees, clockwise from the right."""
    angles = np.radians(np.linspace(first, last, 24))
    return list(zip(x + width * np.cos(angles), y + height * np.sin(angles), strict=True))


SHAPES = {
    "0": [arc(0.5, 0.5, 0.22, 0.33, -90, 270)],
    "1": [[(0.5, 0.15), (0.5, 0.85)]],
    "1 with a flag": [[(0.38, 0.3), (0.52, 0.15), (0.52, 0.85)]],
    "2": [[*arc(0.5, 0.33, 0.2, 0.17, 180, 380), (0.3, 0.85), (0.72, 0.85)]],
    "3": [arc(0.47, 0.32, 0.2, 0.17, 200, 450) + arc(0.47, 0.66, 0.22, 0.18, -90, 150)],
    "4": [[(0.45, 0.15), (0.28, 0.58), (0.74, 0.58)], [(0.6, 0.4), (0.6, 0.87)]],
    "5": [[(0.7, 0.16), (0.36, 0.16), (0.34, 0.45), *arc(0.47, 0.63, 0.22, 0.2, -110, 140)]],
    "6": [[(0.6, 0.13), (0.4, 0.4), *arc(0.5, 0.65, 0.19, 0.19, 190, -170)]],
    "7 without a bar": [[(0.27, 0.16), (0.72, 0.16), (0.42, 0.86)]],
    "7 with a bar": [[(0.27, 0.16), (0.72, 0.16), (0.42, 0.86)], [(0.38, 0.5), (0.66, 0.5)]],
    "8": [arc(0.5, 0.32, 0.16, 0.16, 90, 450) + arc(0.5, 0.67, 0.2, 0.19, -90, 270)],
    "9": [[*arc(0.5, 0.34, 0.18, 0.18, 0, 360), (0.68, 0.34), (0.62, 0.86)]],
}


def drawings():
    """Pairs (digit, strokes): a stroke is an array `(n, 2)` of places, (x, y) from 0 to 1, y downwards."""
    random, found = np.random.default_rng(0), []
    for shape, strokes in SHAPES.items():
        for version in range(10):
            (width, height), shear = random.uniform(0.8, 1.15, 2), random.uniform(-0.15, 0.15)
            change = np.array([[width, -shear], [0, 0.95 * height]]) if version else np.eye(2)
            found.append((int(shape[0]), [(np.array(line) - 0.5) @ change.T + 0.5 for line in strokes]))
    return found
