"""Pr_c: a distribution over pseudo labels that always agree with the annotation."""
