"""Settings of every test."""

import os

# Must come before torch and numpy are imported. Test tensors are tiny: waking a second thread for one costs a
# hundred times more than the work, the more so where several test runs share the cores. Processes that tests
# start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
