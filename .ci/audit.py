"""Known weaknesses of the pinned dependencies, by pip-audit in an environment of its own.

Where there is no pip-audit to install, or its database cannot be reached, that is printed as one
line and is no failure: a check that needs a network must not make the others fail.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = "pip-audit==2.10.1"
FOUND = 1
"""Exit code of pip-audit when it found something; it has the same for other failures."""


def main() -> int:
    """0: nothing found, or not possible here; 1: something was found."""
    with tempfile.TemporaryDirectory() as where:
        venv.create(where, with_pip=True)
        python = str(Path(where) / "bin" / "python")
        made = run([python, "-m", "pip", "install", "-q", VERSION])
        if made.returncode:
            return skipped("pip-audit cannot be installed from this registry")
        lock = str(ROOT / "requirements.lock")
        command = ["-m", "pip_audit", "--disable-pip", "--require-hashes", "-r", lock]
        done = run([python, *command, "--progress-spinner", "off", "--timeout", "20"])
    said = done.stdout + done.stderr
    total = sum("--hash" in line for line in Path(lock).read_text().splitlines())
    known = total - said.count("could not be audited")
    if "known vulnerabilit" not in said or known <= 0:
        return skipped("no database of weaknesses can be reached from here (0 packages audited)")
    print(said)
    print(f"{known} of {total} pinned packages audited; torch is pinned without a hash, and is not")
    return int(done.returncode == FOUND and "No known" not in said)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command, quietly."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def skipped(why: str) -> int:
    """One reason, and no failure."""
    print(f"audit skipped: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
