"""List, copy and remove the files of compacted views in a partition's directory.

`tiered.read.view_places` defines the contents. Here they are files in ``<partition>/view/<view>/``, two levels deep,
that never change once they have their names. Kafka ignores directories inside a partition's directory.
"""

from __future__ import annotations

from contextlib import suppress

from local.errors import NotFound
from local.names import VIEW_PARTS
from local.storage import FileFacts, Storage, join

ASIDE = "~aside"  # suffix for parts being written; no view's name holds a tilde
CHUNK_BYTES = 4 << 20


def view_files(storage: Storage, directory: str) -> dict[str, FileFacts]:
    """List the files below the partition's directory as ``view/<view>/<file>``, in order, unfinished ones too."""
    found: dict[str, FileFacts] = {}
    for place in _places(storage, directory):
        with suppress(NotFound):  # removed since the listing
            files = storage.list_files(join(directory, place))
            found |= {join(place, name): files[name] for name in sorted(files)}
    return found


def copy_view_files(source: Storage, old: str, target: Storage, new: str) -> None:
    """Copy the finished parts from the partition directory `old` to `new`, durably. Existing copies stay."""
    there = view_files(target, new)
    for path, facts in view_files(source, old).items():
        place = path.rpartition("/")[0]
        if place.endswith(ASIDE) or (path in there and there[path].size_bytes == facts.size_bytes):
            continue
        target.make_directory(join(new, place))
        file = target.create(join(new, path))
        try:
            for at in range(0, facts.size_bytes, CHUNK_BYTES):
                file.append(source.read(join(old, path), at, min(CHUNK_BYTES, facts.size_bytes - at)))
            file.sync()
        finally:
            file.close()
        target.sync_directory(join(new, place))


def remove_view_files(storage: Storage, directory: str) -> None:
    """Remove the parts and their directories; durable once the partition's directory is removed durably."""
    root = join(directory, VIEW_PARTS)
    if not storage.is_directory(root):
        return
    for place in _places(storage, directory):
        for name in storage.list(join(directory, place)):
            storage.unlink(join(directory, place, name))
        storage.remove_directory(join(directory, place))
    storage.remove_directory(root)


def _places(storage: Storage, directory: str) -> list[str]:
    root = join(directory, VIEW_PARTS)
    if not storage.is_directory(root):
        return []
    names = storage.list(root)
    return [join(VIEW_PARTS, name) for name in names if storage.is_directory(join(root, name))]
