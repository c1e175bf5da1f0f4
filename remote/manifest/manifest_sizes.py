"""How many bytes a head takes in the store, for whoever counts what a partition keeps there. No request is sent for it.

Known of every head that this process has read; else its bytes are made. The same heads are asked about again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.manifest.manifest import Head

SIZES_KEPT = 10_000
_SIZES: dict[str, int] = {}  # by the heads' commits; written by several threads at once without harm


def note_size(head: Head, size_bytes: int) -> None:
    """`size_bytes` is what the store holds of it."""
    if len(_SIZES) >= SIZES_KEPT:
        _SIZES.clear()
    _SIZES[head.commit_id] = size_bytes


def size_of(head: Head) -> int:
    """Bytes of the object."""
    known = _SIZES.get(head.commit_id)
    if known is None:
        from remote.manifest.manifest import encoded_size

        known = encoded_size(head)
        note_size(head, known)
    return known
