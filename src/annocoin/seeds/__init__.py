"""From image tags to seeds: an image classifier, its peaks, peak back-propagation, retrieval."""
