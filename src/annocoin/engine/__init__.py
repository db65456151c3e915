"""Training: one Trainer, the stages of a run, its directory, its configuration, distribution."""
