"""Search of given keys in a bucket: which readable segments and parts of compacted views have records of them.

**Keys are personal data.** They are in the memory of the process that reads the key file, and nowhere else: a task gets
digests (`local.cleaner.offset_map.digest_keys`) with a secret of the run. The state file has a fingerprint of the keys,
made slow to guess (scrypt) with a salt. Counts and offsets are in results and logs, keys are not. Equal digests are
taken for equal keys: the chance of an error is 2^-69 for a billion keys.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.offset_map import SECRET_BYTES, digest_keys
from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound
from local.format.batch_header import CONTROL
from local.format.columns import BatchTable, Columns, Flags
from local.records.batch_runs import BatchRuns
from local.storage import Storage
from local.verify.findings import Finding, finding
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition, why_missing
from remote.keys import full_key, own_part, parse_view_key
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.view import CompactedView
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import BucketJob, Executor, Failures, StateFile, run_job
from tiered.stores.object_encoding import SettingsOf, own_settings

STATE_VERSION = 1


# How a line of a key file becomes a key, and the expected form for the error; the line itself is never shown.
FORMATS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "text": (bytes, "a key as text"),
    "hex": (binascii.unhexlify, "pairs of hexadecimal digits"),
    "base64": (partial(base64.b64decode, validate=True), "base64 with padding"),
}


def parse_keys(data: bytes, format_name: str, *, path: str) -> frozenset[bytes]:
    """Return the keys of a key file: one for each line that is not empty. Raises InvalidRequest without a key."""
    (decode, expected), found = FORMATS[format_name], set()
    if format_name == "text":
        data = data.removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        if not line:
            continue
        try:
            found.add(decode(line))
        except (binascii.Error, ValueError):
            facts = {"file": path, "line": number, "expected": expected}
            raise InvalidRequest("cannot read the key file, a line is invalid", **facts) from None
    if not found:
        raise InvalidRequest("cannot read the key file, it has no key", file=path)
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyDigests:
    """Digests of the keys to erase; can be pickled. No key can be read from it, but a guess can be tested."""

    count: int
    secret: bytes = field(repr=False)
    lengths: NDArray[np.int32] = field(repr=False)
    low: NDArray[np.int64] = field(repr=False)
    pairs: frozenset[tuple[int, int]] = field(repr=False)

    @staticmethod
    def of(keys: Iterable[bytes]) -> KeyDigests:
        keys = sorted(keys)
        secret = secrets.token_bytes(SECRET_BYTES)
        lengths = np.array([len(key) for key in keys], np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        low, high = digest_keys(memoryview(b"".join(keys)), starts, lengths, secret)
        pairs = frozenset(zip(low.tolist(), high.tolist(), strict=True))
        return KeyDigests(count=len(keys), secret=secret, lengths=np.unique(lengths), low=np.sort(low), pairs=pairs)

    def found_in(self, columns: Columns) -> Flags:
        found: Flags = np.isin(columns.key_lengths, self.lengths)
        found &= ((columns.table.attributes & CONTROL) == 0)[columns.batch_ordinals]
        rows = np.flatnonzero(found)
        low, high = digest_keys(columns.data, columns.key_starts[rows], columns.key_lengths[rows], self.secret)
        likely = np.isin(low, self.low)
        pairs = zip(low[likely].tolist(), high[likely].tolist(), strict=True)
        likely[likely] = np.fromiter((pair in self.pairs for pair in pairs), np.bool_)
        found[rows] = likely
        return found


def fingerprint(keys: Iterable[bytes], salt: bytes) -> str:
    """Return a digest that is equal for equal keys, and slow to guess."""
    digest = hashlib.sha256()
    for key in sorted(keys):
        digest.update(len(key).to_bytes(4, "big") + key)
    return hashlib.scrypt(digest.digest(), salt=salt, n=1 << 14, r=8, p=1, dklen=32).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCount:
    """Records of the keys in ``[first_offset, next_offset)`` of a segment or view part; sizes are inflated."""

    ulid: str
    records: int = 0
    size_bytes: int = 0
    tombstones: int = 0
    first_offset: int = 0
    next_offset: int = 0


def count_keys(remote: RemotePartition, entry: SegmentEntry, keys: KeyDigests) -> KeyCount:
    """Count the records of `keys` in a whole segment. Raises NotFound if it was deleted, Corrupt for damage."""
    found = KeyCount(ulid=entry.ulid)
    for data, table in read_runs(remote, entry):
        for columns in kernels.decode_in_steps(data, verify=False, table=table):
            mine = keys.found_in(columns)
            if not mine.any():
                continue
            values, offsets = columns.value_lengths[mine], columns.offsets[mine]
            sizes = columns.key_lengths[mine].sum(dtype=np.int64) + np.maximum(values, 0).sum(dtype=np.int64)
            found = replace(
                found,
                records=found.records + len(offsets),
                size_bytes=found.size_bytes + int(sizes),
                tombstones=found.tombstones + int((values < 0).sum()),
                first_offset=found.first_offset if found.records else int(offsets[0]),
                next_offset=int(offsets[-1]) + 1,
            )
    return found


def read_runs(remote: RemotePartition, entry: SegmentEntry) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches of a segment in parts. Raises Corrupt for the first wrong byte."""
    walk = BatchRuns(partial(remote.read, entry), entry.size_bytes, chunk_bytes=RANGE_BYTES)
    for run in walk:
        if run.damage is not None:
            raise _damaged(entry, run.damage, run.position)
        yield run.data, run.table
    if walk.problem is not None:
        raise _damaged(entry, walk.problem, walk.position)


def _damaged(entry: SegmentEntry, problem: str, position: int) -> Corrupt:
    facts = {"object": entry.data_key, "at": position, "base_offset": entry.base_offset}
    return Corrupt(f"the segment is invalid, {problem}", **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is readable of one partition in one manifest. `settings` are the topic's effective ones."""

    name: RemotePartitionName
    epoch: int
    log_start_offset: int
    entries: tuple[SegmentEntry, ...]
    views: tuple[CompactedView, ...]
    settings: Mapping[str, str]

    @property
    def scanned(self) -> Iterator[SegmentEntry]:
        yield from (entry for view in self.views for entry in view.entries)
        yield from self.entries


def survey(store: ObjectStore, name: RemotePartitionName, settings: SettingsOf = own_settings) -> Survey:
    """Join the newest epoch; return its survey. Raises NotFound without a manifest, Conflict for a deleted topic."""
    log = MetadataLog(store, name.prefix)
    manifest = log.join()
    return Survey(
        name=name,
        epoch=log.epoch,
        log_start_offset=manifest.log_start_offset,
        entries=log.ask(manifest, lambda index: tuple(index.entries())),
        views=manifest.views,
        settings=settings(name.topic, manifest.properties),
    )


def scan_keys(
    executor: Executor,
    bucket: Bucket,
    surveys: Sequence[Survey],
    keys: KeyDigests,
    *,
    known: Mapping[str, KeyCount] | None = None,
    on_count: Callable[[KeyCount], None] = lambda count: None,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> list[Scan]:
    """Run a `ScanJob`; return the scan of each survey. Errors of segments are in the scans. Raises Unavailable."""
    errors: dict[int, LogError] = {}
    job = ScanJob(bucket=bucket, surveys=surveys, keys=keys, known=known or {}, on_count=on_count)
    return run_job(job, executor, progress=progress, errors=errors)


class ScanUnit(NamedTuple):
    number: int
    prefix: str
    entry: SegmentEntry


@dataclass(kw_only=True)
class ScanJob(BucketJob[ScanUnit, KeyCount, "Scan"]):
    """Counts records of the keys, with a `Scan` for each partition; segments in `known`, by ulid, are not read."""

    plan_ends_with_error = False
    bucket: Bucket
    surveys: Sequence[Survey]
    keys: KeyDigests
    known: Mapping[str, KeyCount]
    on_count: Callable[[KeyCount], None]

    def __post_init__(self) -> None:
        self.description = f"searching keys in {sum(len(list(each.scanned)) for each in self.surveys)} segments"
        self.failures = Failures([each.name for each in self.surveys])
        self._scans = [Scan(survey=each) for each in self.surveys]

    def units(self) -> Iterator[ScanUnit]:
        for number, each in enumerate(self.surveys):
            for entry in each.scanned:
                if (known := self.known.get(entry.ulid)) is not None:
                    self._scans[number].counts[entry.ulid] = known
                else:
                    yield ScanUnit(number, each.name.prefix, entry)

    def size_of(self, unit: ScanUnit) -> int:
        return unit.entry.stored_bytes

    def task(self) -> Callable[..., KeyCount]:
        return partial(_scanned, self.bucket, self.keys)

    def commit(self, results: Sequence[tuple[ScanUnit, KeyCount | LogError]]) -> None:
        for unit, result in results:
            scan = self._scans[unit.number]
            if isinstance(result, LogError):
                scan.unread[unit.entry.ulid] = result
                continue
            scan.counts[unit.entry.ulid] = result
            self.on_count(result)

    def outcomes(self) -> list[Scan]:
        return self._scans


def _scanned(bucket: Bucket, keys: KeyDigests, unit: ScanUnit, store: ObjectStore) -> KeyCount:
    remote = RemotePartition(store, unit.prefix, ChunkCache(0), keys=bucket.keys())
    try:
        return count_keys(remote, unit.entry, keys)
    except NotFound as error:
        log = MetadataLog(store, unit.prefix)
        is_in_view = parse_view_key(own_part(unit.entry.data_key)) is not None  # may be below the log start offset
        if not is_in_view and unit.entry.next_offset <= log.refresh().log_start_offset:
            return KeyCount(ulid=unit.entry.ulid)  # expired since the survey
        raise why_missing(log, [unit.entry], error) from error


@dataclass(kw_only=True)
class Scan:
    """The counts of one partition by ulid, and the errors of the segments that could not be read."""

    survey: Survey
    counts: dict[str, KeyCount] = field(default_factory=dict)
    unread: dict[str, LogError] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """False if the scan was stopped."""
        return all(entry.ulid in self.counts or entry.ulid in self.unread for entry in self.survey.scanned)

    @property
    def records(self) -> int:
        return sum(count.records for count in self.counts.values())

    @property
    def clean(self) -> dict[str, KeyCount]:
        return {ulid: count for ulid, count in self.counts.items() if not count.records}

    def matched(self, entries: Iterable[SegmentEntry]) -> list[SegmentEntry]:
        return [entry for entry in entries if entry.ulid in self.counts and self.counts[entry.ulid].records]

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each segment or view part with a record of the keys, and for each unread one."""
        for entry in self.survey.scanned:
            where = full_key(self.survey.name.prefix, entry.data_key)
            if (count := self.counts.get(entry.ulid)) is not None and count.records:
                offsets = (count.first_offset, count.next_offset)
                yield finding("redact.key-present", where, offsets=offsets, records=count.records)
            elif (cause := self.unread.get(entry.ulid)) is not None:
                key_id = cause.facts.get("key_id") if isinstance(cause, AccessDenied) else None
                step = f"correct the key ring, it needs the key {key_id}; then run again" if key_id else None
                yield finding(
                    "redact.not-read", where, next_step=step, offsets=entry.offsets, is_unread=True, cause=cause.attempt
                )


class _Redaction(msgspec.Struct, frozen=True):
    tiered_redaction: int
    store: str
    salt: str
    fingerprint: str


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_DECODERS = msgspec.json.Decoder(_Redaction), msgspec.json.Decoder(KeyCount)


class RedactState(StateFile[_Redaction, KeyCount]):
    """The counts of finished segments. Segments never change, so a count stays true for the same keys."""

    def __init__(
        self, storage: Storage, path: str, store_url: str, keys: frozenset[bytes], *, resume: bool = False
    ) -> None:
        """With `resume`, continue an earlier run's file. Raises InvalidRequest for another bucket or other keys."""

        def is_resumable(found: _Redaction) -> bool:
            if not resume or found.tiered_redaction != STATE_VERSION:
                return False
            if found.fingerprint != fingerprint(keys, bytes.fromhex(found.salt)):
                raise InvalidRequest("cannot resume the redaction, its key file had other keys", path=path)
            return True

        salt = secrets.token_bytes(16)
        first = _Redaction(STATE_VERSION, store_url, salt.hex(), fingerprint(keys, salt))
        super().__init__(storage, path, first, _DECODERS, job="redaction", is_resumable=is_resumable)
        self.counts: Mapping[str, KeyCount] = {line.ulid: line for line in self.lines}
