"""Average precision of instances, by four named protocols."""
