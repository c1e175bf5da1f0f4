"""Stored sizes of manifests, to account the bytes of a partition. Sends no request.

The size is known for every manifest that this process has read. Otherwise the manifest is encoded once and the size is
remembered, because callers ask about the same manifests repeatedly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.manifest.manifest import Head

SIZES_KEPT = 10_000
_SIZES: dict[str, int] = {}  # by the manifests' commit ids; concurrent writes do no harm


def note_size(head: Head, size_bytes: int) -> None:
    """Remember `size_bytes`, the size of the stored object."""
    if len(_SIZES) >= SIZES_KEPT:
        _SIZES.clear()
    _SIZES[head.commit_id] = size_bytes


def size_of(head: Head) -> int:
    """Size of the stored object in bytes."""
    known = _SIZES.get(head.commit_id)
    if known is None:
        from remote.manifest.manifest import encoded_size

        known = encoded_size(head)
        note_size(head, known)
    return known
