"""Synthetic scenes: animals that are named by a small part and must be segmented whole."""
