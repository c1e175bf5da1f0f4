"""Stored sizes of manifests, to account the bytes of a partition. Sends no request.

The size is known for every manifest that this process has read. Otherwise the manifest is encoded once and the size is
remembered, because callers ask about the same manifests repeatedly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.manifest.manifest import Manifest

CACHED_SIZES_MAX = 10_000
_SIZES: dict[str, int] = {}  # by the manifests' commit ids; concurrent writes do no harm


def note_size(manifest: Manifest, size_bytes: int) -> None:
    """Remember `size_bytes`, the size of the stored object."""
    if len(_SIZES) >= CACHED_SIZES_MAX:
        _SIZES.clear()
    _SIZES[manifest.commit_id] = size_bytes


def size_of(manifest: Manifest) -> int:
    """Size of the stored object in bytes."""
    known = _SIZES.get(manifest.commit_id)
    if known is None:
        from remote.manifest.manifest import encoded_size

        known = encoded_size(manifest)
        note_size(manifest, known)
    return known
