"""The learning objective: task loss, diversity, dissimilarity coefficient and direct loss.

Pure functions on tensors: no files, no networks.
"""
