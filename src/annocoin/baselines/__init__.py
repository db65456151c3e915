"""Peer systems: the methods of the paper's table 1, on the same data, networks and evaluation."""
