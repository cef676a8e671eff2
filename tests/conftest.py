"""One BLAS thread for all tests: runs are compared bit for bit, and CPUs are shared."""

import os
import sys

# The libraries read these when they load: set before any test module imports numpy or torch.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"


def pytest_runtest_setup() -> None:
    """One torch thread before each test, without importing torch where no test needs it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
