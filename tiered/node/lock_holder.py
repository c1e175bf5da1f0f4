"""Find the process that holds a log directory; needs no room on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from local.names import LOCK
from local.storage import join


def lock_holder(path: str) -> int | None:
    """The process that holds `path`'s flock, from Linux's ``/proc/locks``; None if none or unknown.

    Only reads: taking the lock, even briefly, could keep a manager from starting.
    """
    try:
        facts = os.stat(path)
        with open("/proc/locks", encoding="ascii") as locks:
            lines = locks.read().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    for line in lines:
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:393 0 EOF
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
            return int(words[4])
    return None


def directory_holder(roots: Iterable[str], holder: Callable[[str], int | None] = lock_holder) -> int | None:
    """The process that holds one of these log directories; None if none or unknown."""
    return next((pid for root in roots if (pid := holder(join(root, LOCK))) is not None), None)
