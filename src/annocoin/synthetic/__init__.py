"""Synthetic scenes: animals whose class shows in a small part, to be segmented as a whole."""
