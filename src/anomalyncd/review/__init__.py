"""The page on which people name and correct the classes of a run."""
