"""A broker's log directory: its check, and the leader epochs and log start of a partition in it.

After DeleteRecords the broker's ``leader-epoch-checkpoint`` begins at the log start, which may be inside a segment. For
lower offsets the epochs are read from the batches. Source: kafka `LeaderEpochFileCache.truncateFromStart`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from local import names
from local.errors import InvalidRequest, NotFound
from local.index.index_files import slices_of
from local.log.leader_epochs import LeaderEpochs
from local.names import LOG, segment_file
from local.storage import Storage, join
from policies.deleted_records import LogStartFacts
from tiered.config.properties import nearest

Read = Callable[[int, int], bytes]
INTERNAL = "__"  # the broker's internal topics


def epochs_of_batches(read: Read, known: LeaderEpochs, below: int) -> LeaderEpochs:
    """The epochs that a segment's batches have for offsets under `below`, followed by those of `known`.

    Batches without an epoch (-1) add nothing.
    """
    found = LeaderEpochs()
    for _, _, table in slices_of(read):
        for at in np.flatnonzero(np.diff(table.leader_epochs, prepend=-2)).tolist():
            epoch, start = int(table.leader_epochs[at]), int(table.base_offsets[at])
            if epoch >= 0 and start < below:
                found = found.assign(epoch, start)
        if int(table.last_offsets[-1]) >= below:
            break
    for epoch, start in known.entries:
        found = found.assign(epoch, start)
    return found


def log_start_facts(
    storage: Storage, directory: str, sizes: dict[int, int], start: int, epochs: LeaderEpochs
) -> LogStartFacts | None:
    """The facts of a log start inside one of the segments `sizes` (base offset to bytes).

    None if the log start is not inside one, or if epochs and batches do not confirm it: the broker writes its
    checkpoints at different times.
    """
    bases = [base for base in sizes if base < start]
    if not bases or start <= min(sizes) or (epochs.entries and epochs.entries[0][1] < start):
        return None
    base = max(bases)
    newest, reached = None, base
    file = storage.open_reader(join(directory, segment_file(base, LOG)))
    try:
        for _, _, table in slices_of(file.read):
            below = table.max_timestamps[table.last_offsets < start]
            times = [newest if newest is not None else -1, *(below[below >= 0].tolist())]
            newest = max(times) if max(times) >= 0 else None
            reached = int(table.last_offsets[-1]) + 1
            if reached >= start:
                break
    finally:
        file.close()
    if reached < start:
        return None
    return LogStartFacts(newest_below_ms=newest, bytes_from=sum(sizes[each] for each in sizes if each >= base))


def check_log_directory(storage: Storage, root: str, topics: Sequence[str] = ()) -> None:
    """Check that `root` is a broker's log directory.

    Raises InvalidRequest if it has neither a partition nor the ``meta.properties`` of a new broker. Raises NotFound if
    the directory does not exist, or if it lacks one of the named topics.
    """
    hint = "name the log.dirs of a broker that contain its TOPIC-PARTITION directories"
    if not storage.is_directory(root):
        kind = InvalidRequest if storage.exists(root) else NotFound
        raise kind(f"cannot adopt, the directory does not exist: {hint}", directory=root)
    there = storage.list(root)
    is_one = names.META_PROPERTIES in there or any(names.parse_partition_directory(name) for name in there)
    if not is_one:
        raise InvalidRequest(f"cannot adopt, the directory is not a Kafka log directory: {hint}", directory=root)
    known = adopted_topics(storage, root)
    for topic in topics:
        if topic not in known:
            told = {"there_are": ", ".join(known[:10]) or "none", "did_you_mean": nearest(topic, known)}
            raise NotFound(
                "cannot adopt the topic, the broker has no partition of it in this directory",
                topic=topic,
                directory=root,
                **told,
            )


def adopted_topics(storage: Storage, root: str, topics: Sequence[str] = ()) -> list[str]:
    """The topics of a log directory that a sidecar copies: the named ones, or all but internal ones."""
    found = (names.parse_partition_directory(name) for name in storage.list(root))
    there = {each.topic for each in found if each is not None and not each.topic.startswith(INTERNAL)}
    return sorted(there & set(topics) if topics else there)
