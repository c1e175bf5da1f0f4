"""The names of writers in manifests.

A manager's name has the machine, the node, and a part for each start; a job's has its kind and id. The node's part is
the same at every start, so a reader sees whether the last writer was of these directories. Only the epoch decides which
process may commit.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from local.errors import LogError
from local.log.checkpoints import read_meta_properties
from local.storage import Storage

INGEST = "ingest-"  # before the job's id
AFTER_INGEST = f"{INGEST}deletion-"  # a deletion job after an ingest: the partition then has no writer
ADOPT = "adopt beside "  # before the machine and the process; no machine's name has a blank
COPY = "copy of "  # before the source's url
DELETION = "deletion-"  # a deletion job after any other writer
RESTORE = "restore-"  # a directory that was restored to become the writer
_MANAGER = re.compile(r".+-([0-9a-f]{8})-[0-9a-f]{8}")


def new_writer_id(storage: Storage, directories: Sequence[str]) -> str:
    import socket
    import uuid

    return f"{socket.gethostname()}-{node_mark(storage, directories) or 'new'}-{uuid.uuid4().hex[:8]}"


def node_mark(storage: Storage, directories: Sequence[str]) -> str | None:
    """Eight characters for the node named in the first readable directory; None without a node's name."""
    for directory in directories:
        try:
            found = read_meta_properties(storage, directory)
        except LogError:
            continue
        if found is not None:
            return f"{zlib.crc32(f'{found.cluster_id}/{found.node_id}'.encode()):08x}"
    return None


def signed_for(writer_id: str, storage: Storage, directory: str) -> str:
    """Return a job's writer id of this node: a later manager of the node counts as the same writer."""
    mark = node_mark(storage, [directory])
    return writer_id if mark is None else f"{writer_id}@{mark}"


def is_of_other_node(writer_id: str, mark: str | None) -> bool:
    """Whether the writer id is another node's; False if unknown."""
    if mark is not None and writer_id.startswith((RESTORE, ADOPT)):
        return "@" in writer_id and not writer_id.endswith(f"@{mark}")
    found = _MANAGER.fullmatch(writer_id)
    is_job = writer_id.startswith((INGEST, COPY, DELETION))
    return mark is not None and found is not None and not is_job and found[1] != mark


def is_of_node(writer_id: str, mark: str | None) -> bool:
    parts = writer_id.split("-")
    return mark is not None and len(parts) >= 3 and parts[-2] == mark
