"""From a folder to named kinds without a terminal: runs, jobs, report, review and predictions on one page."""
