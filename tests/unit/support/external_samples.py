"""A partition in the layout of a broker's disk, and the same partition in the layouts of other software.

The writers share no code with the readers. They use the documentation of each layout, `json`, `zstandard` and
`cryptography` only.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from dataclasses import dataclass, field
from hashlib import sha3_512
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from local.format.record import Record, StoredRecord
from local.log import Log
from local.log.producer_state import Producer
from local.names import OFFSET_INDEX, TIME_INDEX, TopicPartition
from local.records.isolation import Isolation
from local.settings import LogSettings
from local.storage import DiskStorage

NOW = 1_700_000_000_000
TOPIC_ID = "-_AAAAAAAAAAAAAAAAAAAA"  # begins with a dash, as topic ids may
NAME = TopicPartition("orders-eu", 3)
_SETTINGS = LogSettings(segment_bytes=6000, index_interval_bytes=300, batch_bytes=400)


@dataclass(frozen=True, kw_only=True)
class Files:
    """One closed segment: the files that Kafka passes to a remote storage manager."""

    base: int
    next: int
    log: bytes
    index: bytes
    timeindex: bytes
    snapshot: bytes
    epochs: bytes
    txnindex: bytes = b""
    max_ms: int = NOW


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Closed segments of a partition and their records."""

    segments: list[Files]
    records: list[StoredRecord]
    committed: list[StoredRecord]
    stable: int
    end: int
    directory: Path = field(default=Path())


def write_log(
    directory: Path, count: int = 400, *, epochs: tuple[int, ...] = (0, 2), mark: dict[int, bytes] | None = None
) -> Sample:
    """Write records with headers and nulls, and committed, aborted and open transactions.

    `mark` is part of the values of an epoch, and its transactions have the opposite outcome.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = Log.open(DiskStorage(), str(directory), NAME, _SETTINGS, now_ms=NOW)
    share, long_one = count // len(epochs), 8888  # a transaction over several segments that aborts
    for number, epoch in enumerate(epochs):
        log.begin_epoch(epoch)
        for at in range(number * share, (number + 1) * share, 10):
            if at == share // 2:
                producer = Producer(producer_id=long_one, producer_epoch=0, base_sequence=0, is_transactional=True)
                log.append([Record(b"k", b"far from its end", NOW)] * 3, now_ms=NOW, producer=producer)
            if at == count - 30:
                log.append_marker(long_one, 0, commit=False, coordinator_epoch=0, now_ms=NOW)
            _append(log, at, number * 1000 + at, (mark or {}).get(epoch, b""))
    opened = Producer(producer_id=9999, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"undecided", NOW)] * 3, now_ms=NOW, producer=opened)
    for at in range(count, count + 60, 10):
        _append(log, at, 0)
    log.roll(now_ms=NOW + 10**9)
    log.append([Record(b"k", b"active", NOW)], now_ms=NOW)
    log.flush()
    segments = [_files(log, info) for info in log.segments()[:-1]]
    end = segments[-1].next
    records = [record for record in log.records(0) if record.offset < end]
    committed = [record for record in log.records(0, isolation=Isolation.READ_COMMITTED) if record.offset < end]
    stable = log.last_stable_offset
    log.close()
    return Sample(segments=segments, records=records, committed=committed, stable=stable, end=end, directory=directory)


def _append(log: Log, at: int, number: int, mark: bytes = b"") -> None:
    records = [
        Record(
            None if row % 7 == 3 else b"key-%d" % (row % 50),
            None if row % 11 == 5 and row % 7 != 3 else mark + b"value-%d" % row * (row % 9),
            NOW + row * 10 - (500 if row % 13 == 0 else 0),
            (("trace", b"%d" % row), ("ä", None)) if row % 4 == 0 else (),
        )
        for row in range(at, at + 10)
    ]
    if at % 30 == 0:
        log.append(records, now_ms=NOW)
        return
    producer = Producer(producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append(records, now_ms=NOW, producer=producer)
    log.append_marker(number, 0, commit=(at % 20 == 0) != bool(mark), coordinator_epoch=0, now_ms=NOW + at * 10)


def _files(log: Log, info) -> Files:
    segment = log.segment(info.base_offset)
    kept = [(e, s) for e, s in log.epochs.entries if s < info.next_offset]
    return Files(
        base=info.base_offset,
        next=info.next_offset,
        log=bytes(segment.read(0, segment.size_bytes)),
        index=bytes(segment.index(OFFSET_INDEX)),
        timeindex=bytes(segment.index(TIME_INDEX)),
        snapshot=log.producer_snapshot(info.next_offset),
        epochs="".join(f"{line}\n" for line in ("0", len(kept), *(f"{e} {s}" for e, s in kept))).encode(),
        txnindex=segment.txn_index(),
        max_ms=segment.max_timestamp_ms or -1,
    )


# -- Aiven


@dataclass(frozen=True)
class AivenKey:
    """An RSA key pair. The private key is in a file, as the plugin needs it."""

    id: str
    private: rsa.RSAPrivateKey
    path: Path


def new_key(path: Path, key_id: str = "key1") -> AivenKey:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return AivenKey(key_id, private, path)


def wrap(key: AivenKey, data_key: bytes) -> bytes:
    """RSA, OAEP with SHA3-512 and MGF1 with the same hash, no label: RFC 8017, 7.1.1."""
    public = key.private.public_key().public_numbers()
    size, seed = (public.n.bit_length() + 7) // 8, os.urandom(64)
    block = sha3_512(b"").digest() + bytes(size - len(data_key) - 130) + b"\x01" + data_key

    def mask(of: bytes, length: int) -> int:
        made = b"".join(sha3_512(of + struct.pack(">I", at)).digest() for at in range(length // 64 + 1))
        return int.from_bytes(made[:length], "big")

    hidden = (int.from_bytes(block, "big") ^ mask(seed, len(block))).to_bytes(len(block), "big")
    seed = (int.from_bytes(seed, "big") ^ mask(hidden, 64)).to_bytes(64, "big")
    return pow(int.from_bytes(b"\0" + seed + hidden, "big"), public.e, public.n).to_bytes(size, "big")


def segment_id(number: int) -> str:
    """A segment id in Kafka's text form. Every third id begins with a dash."""
    first = b"\xfb" if number % 3 == 0 else b"\x01"
    return base64.urlsafe_b64encode(first + number.to_bytes(15, "big")).decode().rstrip("=")


def put_aiven(
    store,
    files: Files,
    *,
    number: int,
    chunk: int = 1024,
    compressed: bool = False,
    key: AivenKey | None = None,
    prefix: str = "",
    name: TopicPartition = NAME,
    topic_id: str = TOPIC_ID,
    has_metadata: bool = True,
    stamp: int = NOW,
    epochs: dict[int, int] | None = None,
    without: tuple[str, ...] = (),
) -> str:
    """Write one segment in the layout of the Aiven plugin. Returns the stem of its object keys."""
    data_key, aad = os.urandom(32), os.urandom(32)

    def sealed(body: bytes) -> bytes:
        nonce = os.urandom(12)
        return body if key is None or not body else nonce + AESGCM(data_key).encrypt(nonce, body, aad)

    pieces = [files.log[at : at + chunk] for at in range(0, len(files.log), chunk)]
    packed = [zstandard.ZstdCompressor().compress(each) if compressed else each for each in pieces]
    stored = [sealed(each) for each in packed]
    index: dict[str, object] = {"originalChunkSize": chunk, "originalFileSize": len(files.log)}
    if compressed:
        sizes = zstandard.ZstdCompressor(write_content_size=True).compress(packed_sizes([len(e) for e in stored]))
        index = {"type": "variable", **index, "transformedChunks": base64.b64encode(sizes).decode()}
    else:
        last = len(stored[-1])
        index = {
            "type": "fixed",
            **index,
            "transformedChunkSize": len(stored[0]) if len(stored) > 1 else chunk + (28 if key else 0),
            "finalTransformedChunkSize": last,
        }
    ranges, indexes = {}, b""
    for kind, body in (
        ("offset", files.index),
        ("timestamp", files.timeindex),
        ("producerSnapshot", files.snapshot),
        ("leaderEpoch", files.epochs),
        ("transaction", files.txnindex),
    ):
        part = sealed(body)
        ranges[kind] = {"position": len(indexes), "size": len(part)}
        if kind == "transaction" and not body:
            ranges[kind] = None
        indexes += part
    uuid = segment_id(number)
    manifest: dict[str, object] = {"version": "1", "chunkIndex": index, "segmentIndexes": ranges}
    manifest["compression"] = compressed
    if key is not None:
        wrapped = wrap(key, data_key)
        manifest["encryption"] = {
            "dataKey": f"{key.id}:{base64.b64encode(wrapped).decode()}",
            "aad": base64.b64encode(aad).decode(),
        }
    if has_metadata:
        manifest["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": topic_id,
                    "topicPartition": {"topic": name.topic, "partition": name.partition},
                },
                "id": uuid,
            },
            "startOffset": files.base,
            "endOffset": files.next - 1,
            "maxTimestampMs": files.max_ms,
            "brokerId": 1,
            "eventTimestampMs": stamp,
            "segmentLeaderEpochs": {str(e): s for e, s in (epochs or _own_epochs(files)).items()},
        }
    stem = f"{prefix}{name.topic}-{topic_id}/{name.partition}/{files.base:020d}-{uuid}"
    bodies = {".log": b"".join(stored), ".indexes": indexes, ".rsm-manifest": json.dumps(manifest).encode()}
    for suffix, body in bodies.items():
        if suffix not in without:
            store.put(stem + suffix, body)
    return stem


def packed_sizes(sizes: list[int]) -> bytes:
    """The list of a variable chunk index, by its documentation."""
    out = struct.pack(">i", len(sizes))
    if len(sizes) < 2:
        return out + b"".join(struct.pack(">i", each) for each in sizes)
    base = min(sizes[:-1])
    width = max(1, max((each - base).bit_length() + 7 >> 3 for each in sizes[:-1]))
    rest = b"".join((each - base).to_bytes(width, "big") for each in sizes[:-1])
    return out + struct.pack(">ib", base, width) + rest + struct.pack(">i", sizes[-1])


def _own_epochs(files: Files) -> dict[int, int]:
    """Leader epochs of the offsets of the segment, from the text of the checkpoint."""
    told = [tuple(map(int, line.split())) for line in files.epochs.decode().splitlines()[2:]]
    below = [epoch for epoch, start in told if start <= files.base]
    return {**({below[-1]: files.base} if below else {}), **{e: s for e, s in told if s > files.base}}


# -- Kafka's own layout


def put_kafka_local(store, files: Files, *, number: int, root: str = "kafka-tiered-storage/", without=()) -> str:
    """Write one segment in the layout of LocalTieredStorage."""
    stem = f"{root}{NAME.topic}-{NAME.partition}-{TOPIC_ID}/{files.base:020d}-{segment_id(number)}"
    for suffix, body in (
        (".log", files.log),
        (".index", files.index),
        (".timeindex", files.timeindex),
        (".snapshot", files.snapshot),
        (".leader_epoch_checkpoint", files.epochs),
        (".txnindex", files.txnindex),
    ):
        if suffix not in without and (body or suffix in (".index", ".timeindex")):
            _put(store, stem + suffix, body)
    return stem


def put_pinterest(store, files: Files, *, root: str = "base/0110/cluster-1/", without=()) -> None:
    """Write one segment in the layout of Pinterest's uploader."""
    place = f"{root}{NAME.topic}-{NAME.partition}/"
    for suffix, body in ((".log", files.log), (".index", files.index), (".timeindex", files.timeindex)):
        if suffix not in without:
            _put(store, f"{place}{files.base:020d}{suffix}", body)
    store.put(f"{place}offset.wm", str(files.base).encode())


def put_log(store, files: Files, *, root: str = "", indexes: bool = True) -> None:
    """Write one segment in the layout of a broker's directory."""
    place = f"{root}{NAME.topic}-{NAME.partition}/"
    _put(store, f"{place}{files.base:020d}.log", files.log)
    if indexes:
        for suffix, body in ((".index", files.index), (".timeindex", files.timeindex), (".txnindex", files.txnindex)):
            if body:
                _put(store, f"{place}{files.base:020d}{suffix}", body)
        _put(store, f"{place}{files.next:020d}.snapshot", files.snapshot)


def _put(store, key: str, body: bytes) -> None:
    """Write an object that may be empty, which the stores of the project refuse."""
    if body:
        store.put(key, body)
    else:
        store._objects[key] = (b"", NOW)
