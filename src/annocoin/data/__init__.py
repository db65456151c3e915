"""Weak datasets, evaluation datasets and predictions: from files and to files."""
