"""Settings of every test."""

import os

from hypothesis import settings

# Must come before torch and numpy are imported. Test tensors are tiny: waking a second thread for one costs a
# hundred times more than the work, the more so where several test runs share the cores. Processes that tests
# start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test asserts a time, but hypothesis would: 0.2 s for each example, which a busy machine does not keep.
settings.register_profile("no times", deadline=None)
settings.load_profile("no times")
