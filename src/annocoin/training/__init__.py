"""Learning: the conditional network from seeds, and against a fixed prediction network."""
