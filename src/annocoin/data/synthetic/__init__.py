"""Synthetic scenes: creatures that are named by a small part and must be segmented whole."""

from annocoin.data.synthetic.dataset import write_synthetic
from annocoin.data.synthetic.scene import Scene, render_scene
from annocoin.data.synthetic.species import CLASSES

__all__ = ["CLASSES", "Scene", "render_scene", "write_synthetic"]
