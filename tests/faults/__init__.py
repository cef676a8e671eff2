"""The fault campaign: attacks on runs, files, the command line and the viewer, with figures.

``python -m faults`` (with ``tests`` on the path; ``make faults`` does it) prints one table and
writes results/faults.csv.  One file a family of attacks; each attack is a function that takes
``Options`` and returns a ``Tally``.
"""

import os

# The libraries read these when they load: runs are compared bit for bit.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
