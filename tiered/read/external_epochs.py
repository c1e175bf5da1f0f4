"""Check the leader epochs of an external partition against its batches in case of contradictions.

Leader epochs decide which of several copies is read. They come from other software's manifests and epoch checkpoints.
The batches are authoritative. They are read in three cases: the epochs would hide offsets that a segment holds,
different segments hold the same offsets, or a checkpoint contradicts its segment. The reads are:

1. the header of each segment's first batch, one small read;
2. the headers of all batches of a segment whose first one differs, which has several epochs, which overlaps another, or
   which has offsets that would be hidden.

A contradiction is a finding. An unreadable segment is left out. For a broken checkpoint the next older one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np

from local.errors import Corrupt
from local.format.batch_header import HEADER_BYTES, read_header
from local.index.index_files import slices_of
from local.log.leader_epochs import LeaderEpochs
from local.verify.findings import Finding, Severity, damaged
from remote.external.external_layout import ExternalFormat
from remote.external.external_lineage import Copy, ReadRangeOfCopy
from remote.store import ObjectStore
from tiered.read.external_bytes import SegmentFacts, checkpoint_of, reader_of

THREADS = 16
Note = Callable[[Finding], None]


def newest_checkpoint(
    store: ObjectStore, layout: ExternalFormat, found: Sequence[SegmentFacts], note: Note
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """(the newest valid leader-epoch checkpoint, whether a newer one is broken); empty without one."""
    with_epochs = [each for each in found if each.epochs and each.segment.index_bytes.get("epochs")]
    is_doubtful = False
    for each in sorted(with_epochs, key=lambda each: (each.epochs[-1][0], each.next_offset), reverse=True):
        try:
            entries = checkpoint_of(store, layout, each)
        except Corrupt as error:
            note(replace(damaged(error, each.segment.data_key), severity=Severity.WARNING, offsets=_range(each)))
            is_doubtful = True
            continue
        if entries and not _agrees(LeaderEpochs(entries), each):
            if each.is_first_epoch_read or each.is_verified:
                what = "its leader epoch checkpoint contradicts its batches and is ignored"
                note(Finding(severity=Severity.WARNING, path=each.segment.data_key, what=what, offsets=_range(each)))
            is_doubtful = True
            continue
        return entries, is_doubtful
    return (), is_doubtful


def hidden(copies: Sequence[Copy], chosen: Sequence[ReadRangeOfCopy]) -> list[tuple[int, int]]:
    """The offsets that a copy holds and that are not read."""
    bases = {copy.number: copy.base_offset for copy in copies}
    read = sorted((bases[each.number], each.next_offset) for each in chosen)
    found: list[tuple[int, int]] = []
    reached = 0
    for base, end in sorted((copy.base_offset, copy.next_offset) for copy in copies):
        for at, to in _without(max(base, reached), end, read):
            if found and found[-1][1] == at:
                found[-1] = found[-1][0], to
            else:
                found.append((at, to))
        reached = max(reached, end)
    return found


def overlaps(found: Sequence[SegmentFacts]) -> bool:
    """Whether different segments hold the same offset; copies of one segment do not count."""
    ordered = sorted({(each.segment.base_offset, each.next_offset, each.epochs) for each in found})
    return any(one[1] > two[0] for one, two in pairwise(ordered))


def verified(
    store: ObjectStore,
    layout: ExternalFormat,
    found: Sequence[SegmentFacts],
    unread: Sequence[tuple[int, int]],
    note: Note,
) -> list[SegmentFacts]:
    """The segments with the epochs of their batches; see the module text.

    `unread` are the offsets that would be hidden. Unreadable segments are left out.
    """
    bases = sorted({each.segment.base_offset for each in found})

    def is_doubtful(facts: SegmentFacts) -> bool:
        is_unread = any(base < facts.next_offset and facts.segment.base_offset < end for base, end in unread)
        return is_unread or any(_overlap(facts, each) for each in found)

    with ThreadPoolExecutor(THREADS, "tiered-epochs") as threads:
        answers = threads.map(
            lambda facts: _verified(store, layout, facts, is_doubtful(facts), bases, note),
            found,
        )
        return [facts for facts in answers if facts is not None]


def _verified(
    store: ObjectStore,
    layout: ExternalFormat,
    facts: SegmentFacts,
    is_doubtful: bool,
    bases: Sequence[int],
    note: Note,
) -> SegmentFacts | None:
    if facts.is_verified or (facts.is_first_epoch_read and not is_doubtful):
        return facts
    try:
        read = reader_of(store, layout, facts.segment)
        header = read_header(read(0, HEADER_BYTES))
        if header is None:
            raise Corrupt("cannot read a segment, it does not begin with a batch", object=facts.segment.data_key)
        is_plain = len(facts.epochs) == 1 and header.leader_epoch in (-1, facts.epochs[0][0])
        if is_plain and not is_doubtful:
            return replace(facts, is_first_epoch_read=True, has_all_epochs=True)
        epochs, end = _scanned(read, facts)
    except Corrupt as error:
        note(replace(damaged(error, facts.segment.data_key), offsets=_range(facts)))
        return None
    claimed = facts.epochs
    if epochs and claimed and epochs != claimed:
        what = f"its leader epochs contradict its batches: claimed={_text(claimed)} batches={_text(epochs)}"
        note(
            Finding(
                severity=Severity.WARNING,
                path=facts.segment.data_key,
                what=what,
                offsets=_range(facts),
            )
        )
    # A cleaned segment ends before its last offset. Its end beyond the next segment's base is not trusted.
    limit = min((base for base in bases if base >= end), default=facts.next_offset)
    next_offset = min(facts.next_offset, max(end, limit))
    return replace(facts, epochs=epochs or claimed, next_offset=next_offset, has_all_epochs=True, is_verified=True)


def _scanned(read: Callable[[int, int], bytes], facts: SegmentFacts) -> tuple[tuple[tuple[int, int], ...], int]:
    epochs, end = LeaderEpochs(), facts.segment.base_offset
    for _, _, table in slices_of(read):
        for batch in np.flatnonzero(np.diff(table.leader_epochs, prepend=-2)).tolist():
            if (epoch := int(table.leader_epochs[batch])) >= 0:
                epochs = epochs.assign(epoch, int(table.base_offsets[batch]))
        end = int(table.last_offsets[-1]) + 1
    entries = epochs.entries
    return ((entries[0][0], facts.segment.base_offset), *entries[1:]) if entries else (), end


def _agrees(checkpoint: LeaderEpochs, facts: SegmentFacts) -> bool:
    """Whether a checkpoint has the segment's epochs.

    A checkpoint that starts inside it was cut by DeleteRecords.
    """
    base, end = _range(facts)
    if checkpoint.entries[0][1] > base:
        return True
    return [epoch for epoch, _ in checkpoint.between(base, end)] == [epoch for epoch, _ in facts.epochs]


def _overlap(one: SegmentFacts, two: SegmentFacts) -> bool:
    is_copy = _range(one) == _range(two) and one.epochs == two.epochs
    (base, end), (other, other_end) = _range(one), _range(two)
    return not is_copy and max(base, other) < min(end, other_end)


def _range(facts: SegmentFacts) -> tuple[int, int]:
    return facts.segment.base_offset, facts.next_offset


def _without(start: int, end: int, read: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``[start, end)`` without the ranges of `read`, which ascend and do not overlap."""
    left = []
    for base, following in read:
        if following <= start or base >= end:
            continue
        if base > start:
            left.append((start, base))
        start = max(start, following)
    return [*left, (start, end)] if start < end else left


def _text(epochs: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{epoch}@{start}" for epoch, start in epochs[:5])
