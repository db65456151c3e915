"""The learning objective: task loss, diversities, the dissimilarity coefficient, direct loss.

Pure functions on tensors: no files, no devices, no networks.
"""
