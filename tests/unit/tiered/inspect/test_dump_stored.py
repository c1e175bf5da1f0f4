"""`tiered dump` of compressed and encrypted segments in a bucket: intact, damaged, without the key."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manager_world import DAY, HOUR, NOW, TIERED, World, settle
from remote_samples import manifest
from remote_samples import stored_row as row

from local.errors import Corrupt
from local.format.compression import Codec, compress
from local.format.record import Record
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import PendingDelete, encode_manifest
from remote.manifest.manifest_changes import expire_segments
from remote.manifest.sealing import keyed
from remote.segments.encryption import parse_key_ring
from remote.store import ObjectStore
from remote.store.open_store import open_store
from tiered.cli.errors import Exit
from tiered.cli.main import invoke
from tiered.inspect.dump_sources import Kind, frames, kind_of, split_object_url, url_in_bucket
from tiered.maintenance import upload_and_commit

RING = f"k1 {base64.b64encode(bytes(range(32))).decode()}"
MODES = {
    ".log.zst": {"remote.compression": "zstd"},
    ".log.enc": {"remote.encryption.key.id": "k1"},
    ".log.zst.enc": {"remote.compression": "zstd", "remote.encryption.key.id": "k1"},
}
RECORDS = [Record(b"k%d" % at, b"value %d" % at + b"." * 40, NOW + at) for at in range(40)]


@pytest.fixture
def bucket(request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[ObjectStore, str, Path]:
    """(store, key of a segment with several chunks, the same bucket as a directory)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERED_KEYS", RING)
    monkeypatch.setattr(upload_and_commit, "copy_segment", partial(upload_and_commit.copy_segment, chunk_bytes=700))
    world = World()
    with world.open(segment_bytes="100000") as manager:
        manager.topics.create("t", 1, {**TIERED, **MODES[request.param]}, now_ms=NOW)
        manager.append("t", RECORDS, 0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    World.made.remove(world)  # The check of encrypted buckets needs the key ring. Other tests do it.
    store = open_store(f"memory://{tmp_path.name}{request.param}")
    for info in world.store.list(""):
        body = world.store.get(info.key)
        if info.key.startswith("t-"):
            store.put(info.key, body)
            path = tmp_path / "bucket" / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
    (key,) = [info.key for info in store.list("") if info.key.endswith(request.param)]
    return store, key, tmp_path / "bucket"


every_mode = pytest.mark.parametrize("bucket", list(MODES), indirect=True)


def run(capfd, *words: str, code: int = 0) -> str:
    capfd.readouterr()
    assert invoke(list(words)) == code, capfd.readouterr().err
    return capfd.readouterr().out


def offsets(capfd, target: str, code: int = 0) -> list[int]:
    rows = [json.loads(line) for line in run(capfd, "dump", target, "--records", code=code).splitlines()]
    assert all(row["value"] == RECORDS[row["offset"]].value.decode() for row in rows)
    return [row["offset"] for row in rows]


@every_mode
def test_dump_of_an_encoded_segment_shows_the_appended_records(bucket, capfd) -> None:
    store, key, copy = bucket
    for target in (f"{store.url}/{key}", str(copy / key), f"file://{copy / key}"):
        assert offsets(capfd, target) == list(range(40))
        rows = json.loads(run(capfd, "dump", target, "--batches", "-o", "json"))["batches"]
        assert len(rows) > 3
        assert [row["position"] for row in rows] == sorted({row["position"] for row in rows}), (
            "positions must be those in the plain segment"
        )


@pytest.mark.parametrize("bucket", [".log.zst"], indirect=True)
def test_dump_of_a_compressed_segment_without_its_bucket_reads_frame_by_frame(bucket, capfd, tmp_path: Path) -> None:
    store, key, _ = bucket
    alone = tmp_path / key.rpartition("/")[2]
    alone.write_bytes(store.get(key))
    assert offsets(capfd, str(alone)) == list(range(40))
    alone.write_bytes(store.get(key)[:-5])
    found = offsets(capfd, str(alone), code=Exit.CORRUPTION)
    assert found == list(range(len(found)))
    assert 0 < len(found) < 40


@every_mode
def test_dump_of_a_damaged_segment_names_the_range_and_prints_the_other_records(bucket, capfd) -> None:
    store, key, _ = bucket
    sound = store.get(key)
    seen = set()
    for at in range(0, len(sound), 97):
        store.put(key, sound[:at] + bytes([sound[at] ^ 8]) + sound[at + 1 :])
        capfd.readouterr()
        assert invoke(["dump", f"{store.url}/{key}", "--records"]) == Exit.CORRUPTION
        out, err = capfd.readouterr()
        found = [json.loads(line)["offset"] for line in out.splitlines()]
        missing = sorted(set(range(40)) - set(found))
        assert missing == list(range(missing[0], missing[-1] + 1)), "only the records of one chunk may be missing"
        assert f"from_offset={missing[0]}" in err
        assert key.rpartition("/")[2] in err
        (start,), (length,) = (
            [int(word[len(name) :]) for word in err.split() if word.startswith(name)] for name in ("start=", "length=")
        )
        assert start <= at < start + length
        seen.add(start)
    assert len(seen) > 2


@pytest.mark.parametrize("bucket", [".log.enc", ".log.zst.enc"], indirect=True)
def test_dump_without_the_key_prints_nothing_and_names_the_key(bucket, capfd, monkeypatch, tmp_path: Path) -> None:
    store, key, _ = bucket
    alone = tmp_path / key.rpartition("/")[2]
    alone.write_bytes(store.get(key))
    run(capfd, "dump", str(alone), code=Exit.USAGE)
    monkeypatch.setenv("TIERED_KEYS", RING.replace("k1", "other"))
    capfd.readouterr()
    assert invoke(["dump", f"{store.url}/{key}"]) == Exit.FAILED
    out, err = capfd.readouterr()
    assert out == ""
    assert "key_id=k1" in err


@pytest.mark.parametrize("bucket", [".log.zst.enc"], indirect=True)
def test_dump_of_an_unlinked_segment_finds_its_entry_in_an_older_manifest(bucket, capfd) -> None:
    store, key, _ = bucket
    log = MetadataLog(keyed(store, parse_key_ring([RING], "RING")), key.partition("data/")[0])
    manifest = log.load()
    log.become_writer("x", NOW, topic=manifest.topic, topic_id=manifest.topic_id, partition=0)
    log.commit(
        expire_segments([row.ulid for row in manifest.segments], now_ms=NOW + DAY + HOUR, log_start_offset=40), NOW
    )
    assert offsets(capfd, f"{store.url}/{key}") == list(range(40))


def test_dump_of_a_manifest_has_the_same_columns_for_any_number_of_entries(tmp_path: Path, capfd) -> None:
    known: dict[str, str] = {}
    for count in (0, 1):
        waiting = PendingDelete(key=row("U0").data_key, size_bytes=9, unlinked_ms=8, epoch=2)
        pending_deletes = (waiting,) * count
        path = tmp_path / str(count) / "orders-AAAAAAAAAAAAAAAAAAAAAA" / "2" / "meta" / "head" / f"{7:020}"
        path.parent.mkdir(parents=True)
        path.write_bytes(encode_manifest(manifest(*[row() for _ in range(count)], pending_deletes=pending_deletes)))
        for name, most in {"segments": 1, "unlinked": 1, "unlinked_pages": 0, "spills": 0}.items():
            header, *lines = run(capfd, "dump", str(path), "-o", "csv", "--section", name).splitlines()
            assert len(lines) == min(count, most)
            assert known.setdefault(name, header) == header
    assert {"key_id", "wrapped_key", "state"} <= set(known["segments"].split(","))
    assert known["unlinked_pages"] == f"{known['spills']},unlinked_ms,epoch,unlinked_sequence"


@pytest.mark.parametrize("bucket", [".log.zst.enc"], indirect=True)
def test_dump_of_a_sealed_manifest_needs_the_key_and_names_a_missing_one(bucket, capfd, monkeypatch) -> None:
    store, key, _ = bucket
    prefix = key.partition("data/")[0]
    name = max(info.key for info in store.list(prefix + "meta/head/"))
    body = json.loads(run(capfd, "dump", f"{store.url}/{name}", "-o", "json", "--section", "segments"))
    assert key.removeprefix(prefix) in json.dumps(body)
    monkeypatch.delenv("TIERED_KEYS")
    assert invoke(["dump", f"{store.url}/{name}"]) == Exit.FAILED
    assert "key_id=k1" in capfd.readouterr().err


def test_names_and_urls_of_stored_objects_are_parsed() -> None:
    for suffix in MODES:
        assert kind_of(f"x/{0:020d}-{9:020d}-{1:010d}-X{suffix}") is Kind.STORED_LOG
    assert kind_of("a/b.zst") is kind_of("a/b.enc") is None
    topic = f"t-{'A' * 22}"
    assert split_object_url(f"file:///b/c/{topic}/0/data/x.log.zst") == ("file:///b/c", f"{topic}/0/data/x.log.zst")
    assert split_object_url(f"file:///{topic}/0/view/v/x.log") == ("file:///", f"{topic}/0/view/v/x.log")
    assert url_in_bucket(f"/b/{topic}/0/data/x.log.enc") == f"file:///b/{topic}/0/data/x.log.enc"
    assert url_in_bucket("/b/t-0/x.log") is None


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5), st.data())
def test_zstd_frames_are_found_and_damage_raises_corrupt_or_gives_another_frame(bodies: list[bytes], data) -> None:
    made = [bytes(compress(Codec.ZSTD, body, 3)) for body in bodies]
    whole = b"".join(made)

    def found(file: bytes) -> list[tuple[int, int]]:
        return [(length, size) for _, length, size in frames(lambda at, n: file[at : at + n], len(file))]

    assert found(whole) == [(len(frame), len(body)) for frame, body in zip(made, bodies, strict=True)]
    cut = data.draw(st.integers(1, len(whole) - 1))
    ends = {sum(map(len, made[:count])) for count in range(len(made))}
    if cut not in ends:
        with pytest.raises(Corrupt):
            found(whole[:cut])
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    with suppress(Corrupt):
        found(damaged)
