"""Colours as a colour-blind reader sees them."""

import itertools

import matplotlib as mpl
import numpy as np

SEEN_WITH = {  # Machado, Oliveira & Fernandes 2009, severity 1.0, on linear RGB
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def lab(colour, vision):
    """CIELAB of a colour as someone with that vision sees it."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SEEN_WITH[vision]) @ linear, 0, 1)
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ seen
    )
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 1e-9))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


BLIND = ("protanopia", "deuteranopia", "tritanopia")
APART = 15  # CIELAB; about 2 is just noticeable side by side, lines and small markers need more


def distance(one, other, vision):
    return np.linalg.norm(lab(one, vision) - lab(other, vision))


def confusable(ax):
    """Pairs of labels in these axes that a colour-blind reader tells apart neither by colour nor by line or marker."""
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    looks = [
        (line.get_label(), line.get_color(), line.get_linestyle(), str(line.get_marker()))
        for line in lines
    ]
    return [
        (one, other, vision)
        for (one, colour, *shape), (other, second, *form) in itertools.combinations(looks, 2)
        for vision in BLIND
        if shape == form and distance(colour, second, vision) < APART
    ]
