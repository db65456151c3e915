"""From an image to its regions, a `RegionSet`; or regions imported from other programs."""
