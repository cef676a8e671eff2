"""Write requirements.lock: every pin of constraints.txt with the SHA-256 of its file.

``make lock`` runs it.  The hashes are of the files that this platform's pip chooses (Linux x86-64,
Python 3.11) as the package index at hand delivers them.  torch is left out: one version has many
builds (CPU, CUDA), each with its own hash, so it is installed by its exact version.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNHASHED = ("torch",)
HEAD = """\
# Written by `make lock` from constraints.txt: do not edit.  Linux x86-64, Python 3.11.
# Install: pip install --require-hashes --no-deps -r requirements.lock   (`make venv-locked`)
# torch is not here: its builds (CPU, CUDA) share a version and not a hash.
"""


def pins() -> list[str]:
    """``name==version`` of everything but what has no one hash."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [pin for pin in found if pin.partition("==")[0] not in UNHASHED]


def normal(name: str) -> str:
    """A package's name as its file spells it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def main() -> int:
    """Download, hash, write."""
    with tempfile.TemporaryDirectory() as where:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", where, *pins()]
        subprocess.run(command, check=True)
        lines = []
        for pin in pins():
            name, _, version = pin.partition("==")
            start = f"{normal(name)}-{version}"
            files = [f for f in Path(where).iterdir() if normal_file(f).startswith(start.lower())]
            sums = sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)
            if len(sums) != 1:
                print(f"{pin}: {len(sums)} files", file=sys.stderr)
                return 1
            lines.append(f"{pin} --hash=sha256:{sums[0]}")
    (ROOT / "requirements.lock").write_text(HEAD + "\n".join(lines) + "\n")
    return 0


def normal_file(path: Path) -> str:
    """The file's name, with the package's in the normal spelling."""
    name, _, rest = path.name.partition("-")
    return f"{normal(name)}-{rest}".lower()


if __name__ == "__main__":
    sys.exit(main())
