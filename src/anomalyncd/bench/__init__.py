"""Named experiments, the paper's figures as data, and rivals."""
