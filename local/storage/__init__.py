"""All access to the local disk.

Every file that the project reads, writes, syncs, renames or deletes passes through a `Storage`. Tests replace it
(`tests/crash`). `observed_storage` counts and times, `throttle` limits bytes per second. Start with `storage.Storage`.
"""

from local.storage.storage import (
    Body,
    DiskFile,
    DiskStorage,
    FileFacts,
    Space,
    Storage,
    StorageFile,
    join,
    parent,
    replace_file,
)

__all__ = [
    "Body",
    "DiskFile",
    "DiskStorage",
    "FileFacts",
    "Space",
    "Storage",
    "StorageFile",
    "join",
    "parent",
    "replace_file",
]
