"""A block that plays another thread or process, inside a call of the present one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from local import lock_ranks


@contextmanager
def as_other_thread() -> Iterator[None]:
    """Set the locks of this thread aside: `local.lock_ranks` does not count them in this block."""
    before = lock_ranks._locks()
    lock_ranks._held.locks = []
    try:
        yield
    finally:
        lock_ranks._held.locks = before
