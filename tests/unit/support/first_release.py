"""The bucket written by the first release, stored as `first_release.zip`, and its expected records.

It was made once with the code of that release, by ``python tests/unit/support/first_release.py``, and must never be
made again: later versions must open it unchanged. A later format gets its own file. The archive has every object
under its key, and ``expected.json`` with the records of each topic as (offset, timestamp, checksum of key and value).
Committed records are listed separately.
"""

from __future__ import annotations

import base64
import io
import json
import random
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

from remote.segments.encryption import KeyRing

HERE = Path(__file__).parent
FILE = HERE / "first_release.zip"
KEYS = KeyRing({"first": bytes(range(32))})
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "transactions": {},
    "zstd": {"remote.compression": "zstd"},
    "encrypted": {"remote.compression": "zstd", "remote.encryption.key.id": "first"},
    "paged": {},
}


def load() -> tuple[dict[str, bytes], dict[str, dict[str, list[list[object]]]]]:
    """(objects by key, for each topic its records, "all" and "committed")."""
    with zipfile.ZipFile(FILE) as packed:
        bodies = {name: packed.read(name) for name in packed.namelist()}
    return {key: body for key, body in bodies.items() if key != "expected.json"}, json.loads(bodies["expected.json"])


def told(record) -> list[object]:
    """A record in the form of `expected.json`."""
    return [record.offset, record.timestamp_ms, zlib.crc32(repr((record.key, record.value)).encode())]


def make() -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent / "crash")]
    from manager_world import DAY, NOW, TIERED, World, settle

    from local.format.record import Record
    from local.log.producer_state import Producer
    from local.names import TopicPartition
    from remote.manifest import commit_protocol
    from remote.manifest.page_out import PageRule

    rng = random.Random(20)
    commit_protocol.PAGE_RULE = PageRule(manifest_bytes_max=1500, page_rows_max=4, page_rows_min=1, kept_entries_min=2)
    world = World()
    ring = Path("/tmp/first-release-ring")
    ring.write_text("first " + base64.b64encode(bytes(range(32))).decode() + "\n")
    ring.chmod(0o600)
    world.config = replace(world.config, key_ring=str(ring))
    with world.open() as manager:
        for topic, settings in TOPICS.items():
            manager.topics.create(topic, 1, {**TIERED, **settings}, now_ms=NOW)
            for turn in range(40 if topic == "paged" else 8):
                records = [
                    Record(b"k%d" % rng.randrange(12), rng.randbytes(16).hex().encode(), NOW - DAY + turn * 20 + at)
                    for at in range(20)
                ]
                manager.append(topic, records, 0, now_ms=NOW)
                if topic == "transactions":
                    log = manager.partitions.find(TopicPartition(topic, 0)).log
                    producer = Producer(producer_id=7, producer_epoch=1, base_sequence=turn * 5, is_transactional=True)
                    log.append(records[:5], now_ms=NOW, producer=producer)
                    log.append_marker(7, 1, commit=turn % 2 == 0, coordinator_epoch=0, now_ms=NOW)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)
    expected = _expected(world, KEYS)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for key, (body, _) in sorted(world.store._objects.items()):
            out.writestr(zipfile.ZipInfo(key), body, zipfile.ZIP_DEFLATED)
        out.writestr(zipfile.ZipInfo("expected.json"), json.dumps(expected), zipfile.ZIP_DEFLATED)
    FILE.write_bytes(packed.getvalue())


def _expected(world, keys) -> dict[str, dict[str, list[list[object]]]]:
    from local.names import TopicPartition
    from local.records.isolation import Isolation
    from tiered.read.bucket_reader import RemoteLog

    found = {}
    for topic in TOPICS:
        kinds = {"all": Isolation.READ_UNCOMMITTED, "committed": Isolation.READ_COMMITTED}
        readers = {name: RemoteLog(world.store, keys=keys).reader(kind) for name, kind in kinds.items()}
        name = TopicPartition(topic, 0)
        found[topic] = {kind: [told(each) for each in reader.records(name, 0)] for kind, reader in readers.items()}
    return found


if __name__ == "__main__":
    if FILE.exists():
        raise SystemExit("it is there, and stays as it is")
    make()
