"""The names that heads are signed with. Managers': machine, node, and a part of their own for each start. Jobs': what
they are, and their id.

A node's part is the same at every start with the same directories, wherever they are mounted, so whoever finds a head
can tell whether the manager of these directories was the last one to write there. It decides nothing: who may commit is
the epoch's alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from local.checkpoints import read_meta_properties
from local.errors import LogError
from local.storage import Storage

INGEST = "ingest-"  # before the job's id
AFTER_INGEST = f"{INGEST}deletion-"  # what freed the bytes of a partition that was an ingest's: nobody's afterwards
ADOPT = "adopt beside "  # before the machine and the process; no machine's name has a blank
COPY = "copy of "  # before the source's url
DELETION = "deletion-"  # what freed those of anybody else's


def new_writer_id(storage: Storage, directories: Sequence[str]) -> str:
    """For a manager that begins on these directories."""
    import socket
    import uuid

    return f"{socket.gethostname()}-{node_mark(storage, directories) or 'new'}-{uuid.uuid4().hex[:8]}"


def node_mark(storage: Storage, directories: Sequence[str]) -> str | None:
    """Eight characters for the node that the first readable directory says it is of; None where none says."""
    for directory in directories:
        try:
            found = read_meta_properties(storage, directory)
        except LogError:
            continue
        if found is not None:
            return f"{zlib.crc32(f'{found.cluster_id}/{found.node_id}'.encode()):08x}"
    return None


def is_of_node(writer_id: str, mark: str | None) -> bool:
    """Whether a manager of that node signed so."""
    parts = writer_id.split("-")
    return mark is not None and len(parts) >= 3 and parts[-2] == mark
