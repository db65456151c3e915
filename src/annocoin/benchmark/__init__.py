"""The paper's tables on any dataset: rows of runs, the runs themselves, and the written tables."""
