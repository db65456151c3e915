"""Pr_p: a torchvision Mask R-CNN that does not see the annotation, trained with soft targets."""
