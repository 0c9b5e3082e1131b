"""One day of a table of `watch` or `predict`, for the shift meeting."""
