"""Pictures of datasets, regions, seeds, samples and predictions."""
