"""From an image to its regions, a `RegionSet`: made here, or imported from other programs."""

from annocoin.regions.boundaries import BoundaryDetector
from annocoin.regions.collection import RegionFolder, export_regions
from annocoin.regions.imports import read_mat
from annocoin.regions.making import RegionOptions, make_regions
from annocoin.regions.overlay import regions_of_masks, with_masks
from annocoin.regions.proposals import RegionProposer
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import read_regions, write_regions

__all__ = [
    "BoundaryDetector",
    "RegionFolder",
    "RegionOptions",
    "RegionProposer",
    "RegionSet",
    "export_regions",
    "make_regions",
    "read_mat",
    "read_regions",
    "regions_of_masks",
    "with_masks",
    "write_regions",
]
