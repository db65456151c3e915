"""From an image to regions; so far, to the boundaries that they will be made of."""

from annocoin.regions.boundaries import BoundaryDetector

__all__ = ["BoundaryDetector"]
