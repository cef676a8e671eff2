"""What all pictures share: colours that colour-blind readers can tell apart, writing a file."""

from __future__ import annotations

import io
from pathlib import Path

from lwm.errors import RunFailed, reason
from lwm.files import write_bytes_atomic

# Okabe and Ito's colours.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, BLACK = "#56B4E9", "#CC79A7", "#000000"
# Text, lesser text, grid lines and empty bars.
INK, GREY, PALE = "#222833", "#5F6774", "#E4E7EC"


def write(out: Path, data: io.BytesIO) -> None:
    """Put a finished picture into the file ``out``, making its directory if need be."""
    try:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(f"cannot write {out}: {reason(error)}") from error
    write_bytes_atomic(Path(out), data.getvalue())
