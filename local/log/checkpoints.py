"""Kafka's text files: offset checkpoints, leader epochs, ``partition.metadata``, ``meta.properties``.

A checkpoint has a line ``0`` (version), a line with the number of entries, then one entry a line; a missing or empty
file has none. It is replaced whole. Damage raises Corrupt. Source: kafka `CheckpointFile`, `PartitionMetadataFile`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from local import names
from local.errors import Corrupt, InvalidRequest, NotFound
from local.names import TopicPartition
from local.storage import Storage, join, replace_file

_NUMBER = re.compile("-?[0-9]{1,19}")  # the digits of 64 bits


def read_offsets(storage: Storage, path: str) -> dict[TopicPartition, int]:
    """Return the offset per partition of a ``…-offset-checkpoint`` file."""
    found: dict[TopicPartition, int] = {}
    for line, fields in _read(storage, path, 3):
        topic, partition, offset = fields
        try:
            found[TopicPartition(topic, _number(partition, 32))] = _number(offset, 64)
        except (ValueError, InvalidRequest):
            raise Corrupt("cannot read a checkpoint, a line is not an entry", path=path, line=line) from None
    return found


def write_offsets(storage: Storage, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    lines = (f"{name.topic} {name.partition} {offset}" for name, offset in sorted(offsets.items()))
    replace_file(storage, path, _encode(lines))


def read_epochs(storage: Storage, path: str) -> list[tuple[int, int]]:
    """Return the (leader epoch, start offset) pairs of a ``leader-epoch-checkpoint``, both ascending."""
    found: list[tuple[int, int]] = []
    for line, (epoch, start) in _read(storage, path, 2):
        try:
            found.append((_number(epoch, 32), _number(start, 64)))
        except ValueError:
            raise Corrupt(
                "cannot read a leader epoch checkpoint, a line is not an entry", path=path, line=line
            ) from None
    return found


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return _encode(f"{epoch} {start}" for epoch, start in epochs)


def write_epochs(storage: Storage, path: str, epochs: Iterable[tuple[int, int]]) -> None:
    replace_file(storage, path, encode_epochs(epochs))


def read_topic_id(storage: Storage, directory: str) -> str | None:
    """Return the topic id in ``partition.metadata``; None if the file is missing."""
    path = join(directory, names.PARTITION_METADATA)
    fields = _read_fields(storage, path, ": ")
    if fields is None:
        return None
    try:
        return names.check_topic_id(fields["topic_id"])
    except (KeyError, InvalidRequest):
        raise Corrupt("cannot read partition metadata, it has no topic id", path=path) from None


def write_topic_id(storage: Storage, directory: str, topic_id: str, *, syncs_name: bool = True) -> None:
    """Write ``partition.metadata`` as `local.storage.storage.replace_file` does."""
    body = f"version: 0\ntopic_id: {topic_id}\n".encode()
    replace_file(storage, join(directory, names.PARTITION_METADATA), body, syncs_name=syncs_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The cluster, node and directory ids of a log directory; empty where the file lacks one."""

    cluster_id: str
    node_id: str
    directory_id: str


def read_meta_properties(storage: Storage, root: str) -> MetaProperties | None:
    """Return the ids in ``meta.properties`` (version 0: ``broker.id``), None without the file."""
    fields = _read_fields(storage, join(root, names.META_PROPERTIES), "=")
    if fields is None:
        return None
    return MetaProperties(
        cluster_id=fields.get("cluster.id", ""),
        node_id=fields.get("node.id", fields.get("broker.id", "")),
        directory_id=fields.get("directory.id", ""),
    )


def ensure_meta_properties(storage: Storage, root: str, like: MetaProperties | None = None) -> MetaProperties:
    """Return the ids in ``meta.properties``. A new file gets cluster and node id of `like`, else a new one and "1"."""
    found = read_meta_properties(storage, root)
    if found is not None:
        return found
    import uuid

    fresh = MetaProperties(
        cluster_id=(like.cluster_id if like else "") or names.encode_uuid(uuid.uuid4()),
        node_id=(like.node_id if like else "") or "1",
        directory_id=names.encode_uuid(uuid.uuid4()),
    )
    body = f"version=1\ncluster.id={fresh.cluster_id}\nnode.id={fresh.node_id}\ndirectory.id={fresh.directory_id}\n"
    replace_file(storage, join(root, names.META_PROPERTIES), body.encode())
    return fresh


def _read_fields(storage: Storage, path: str, separator: str) -> dict[str, str] | None:
    try:
        lines = storage.read(path).decode("utf-8", "replace").splitlines()
    except NotFound:
        return None
    return dict(line.partition(separator)[::2] for line in lines if not line.startswith("#"))


def parse_entries(data: bytes, path: str, width: int) -> list[tuple[int, list[str]]]:
    """Return (line number, fields) of the entries. Raises Corrupt unless each has `width` fields."""
    lines = data.splitlines()
    if not lines:
        return []
    if lines[0] != b"0" or len(lines) < 2 or lines[1] != b"%d" % (len(lines) - 2):
        raise Corrupt("cannot read a checkpoint, its version or entry count is wrong", path=path)
    rows = []
    for at, line in enumerate(lines[2:], start=3):
        fields = line.decode("utf-8", "replace").split(" ")
        if len(fields) != width:
            raise Corrupt("cannot read a checkpoint, a line is not an entry", path=path, line=at)
        rows.append((at, fields))
    return rows


def _number(text: str, bits: int) -> int:
    """Parse a number as Kafka writes it: `int` alone is too lax. Raises ValueError."""
    if not _NUMBER.fullmatch(text) or not -(1 << bits - 1) <= (number := int(text)) < 1 << bits - 1:
        raise ValueError(text[:20])
    return number


def _read(storage: Storage, path: str, width: int) -> list[tuple[int, list[str]]]:
    try:
        data = storage.read(path)
    except NotFound:
        return []
    return parse_entries(data, path, width)


def _encode(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "\n".join(["0", str(len(rows)), *rows, ""]).encode()
