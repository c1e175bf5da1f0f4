"""The demo's own folder: created by the first run and emptied by the next.

A marker file identifies a folder as the demo's, and is locked during a run. A folder with content and without a marker
is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local.errors import Conflict, InvalidRequest
from local.storage import DiskStorage

MARKER = ".tiered-demo"


@contextmanager
def workshop(directory: str) -> Iterator[Path]:
    """The folder, empty except for its marker.

    Raises InvalidRequest if the folder is not the demo's, Conflict if another run uses it.
    """
    root = Path(directory).absolute()
    marker = root / MARKER
    if root.exists() and not root.is_dir():
        raise InvalidRequest("cannot run the demo, the path is not a folder", directory=directory)
    if root.exists() and any(root.iterdir()) and not marker.exists():
        raise InvalidRequest(
            "cannot run the demo, the folder holds other files; choose another folder with --dir", directory=directory
        )
    root.mkdir(parents=True, exist_ok=True)
    try:
        held = DiskStorage().lock(str(marker))
    except Conflict:
        raise Conflict("cannot run the demo, another demo uses the folder", directory=directory) from None
    try:
        for entry in root.iterdir():
            if entry.name != MARKER:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        yield root
    finally:
        held.close()
