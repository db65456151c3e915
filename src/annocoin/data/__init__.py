"""Datasets and predictions: reading, writing and conversion of files."""
