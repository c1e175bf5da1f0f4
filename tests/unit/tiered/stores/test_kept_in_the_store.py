"""From settings to objects: a manager that compresses and encrypts what it copies, and what its readers need for it."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from remote_samples import stored_row as row
from remote_samples import ulid_of

from local.errors import AccessDenied, AlreadyExists, InvalidRequest, NotFound, Unavailable
from local.format.record import Record
from local.names import TopicPartition
from remote.keys import data_key, partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.key_rotation import rewrap, rewrap_keys
from remote.manifest.manifest_changes import add_segments
from remote.manifest.page_spill import SpillRule
from remote.manifest.sealing import keyed
from remote.manifest.view import CompactedView
from remote.segments.chunk_table import RAW, ZSTD
from remote.segments.encryption import KeyRing
from remote.store.memory_store import MemoryStore
from remote.store.object_settings import ObjectSettings
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.config.key_rings import load_key_ring
from tiered.config.properties import DEFAULTS
from tiered.config.topic_settings import at_rest
from tiered.health.doctor import State, examine
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog, open_remote
from tiered.stores.configured_store import configured_store, object_settings, store_options

NOW = 1_700_000_000_000
KEYS = {"one": bytes(range(32)), "two": bytes(range(32, 64))}
RING = KeyRing(KEYS)
P0 = TopicPartition("orders", 0)


def ring_text(*ids):
    return "".join(f"{each} {base64.b64encode(KEYS[each]).decode()}\n" for each in ids)


@pytest.fixture
def ring_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# the ring\n" + ring_text("one", "two"))
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def world(tmp_path, ring_file):
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    toml = tmp_path / "tiered.toml"
    toml.write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{bucket}"\nkey_ring = "keys"\n'
        '[defaults]\n"remote.storage.enable" = true\n"segment.bytes" = "20000"\n"remote.compression" = "zstd"\n'
        '"remote.encryption.key.id" = "one"\n'
    )
    return Config.load(str(toml)), f"file://{bucket}"


def write(manager, first, count):
    records = [Record(None, b"value %06d " % number * 10, NOW) for number in range(first, first + count)]
    manager.append("orders", records, now_ms=NOW)
    manager.roll("orders", now_ms=NOW)


def test_a_manager_compresses_and_encrypts_and_everybody_with_the_ring_reads_it(world, ring_file, monkeypatch):
    config, url = world
    with LogManager.open(config, now_ms=NOW) as manager:
        manager.create_topic("orders", now_ms=NOW)
        write(manager, 0, 500)
        while manager.tick(NOW):
            pass
        manager.alter_topic("orders", {"remote.encryption.key.id": "two", "remote.compression": "none"}, now_ms=NOW)
        write(manager, 500, 500)
        while manager.tick(NOW):
            pass
        rows = manager.partitions()[0].head().segments
    kinds = {(row.codec, row.key_id) for row in rows}
    assert kinds == {("zstd", "one"), ("none", "two")}
    assert all(row.data_key.endswith(".enc") for row in rows)
    store = open_store(url)
    assert not any(b"value 000" in store.get(info.key) for info in store.list("") if "/data/" in info.key)
    for bucket in (open_remote(url, key_ring=ring_file), RemoteLog(store, keys=RING)):
        with bucket:
            found = [record.value for record in bucket.reader().records(P0, 0)]
            assert found == [b"value %06d " % number * 10 for number in range(1000)]
    with open_remote(url) as bucket, pytest.raises(AccessDenied, match=r"not in the key ring: key_id=one object=\S+"):
        list(bucket.reader().records(P0, 0))
    monkeypatch.setenv("TIERED_KEY_RING", ring_file)
    with open_remote(url) as bucket:
        assert sum(1 for _ in bucket.reader().records(P0, 0)) == 1000


def test_a_topic_whose_key_is_missing_is_refused_before_anything_is_written(world):
    config, _ = world
    with LogManager.open(config, now_ms=NOW) as manager:
        with pytest.raises(
            InvalidRequest, match=r"not in the key ring: remote.encryption.key.id=three key_ring=KeyRing"
        ):
            manager.create_topic("orders", properties={"remote.encryption.key.id": "three"}, now_ms=NOW)
        assert manager.topics() == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (RAW, None, None)),
        ({"remote.compression": "zstd"}, (ZSTD, None, None)),
        ({"remote.encryption.key.id": "two", "remote.storage.class": "GLACIER_IR"}, (RAW, "two", "GLACIER_IR")),
    ],
)
def test_settings_say_how_objects_are_kept(given, expected):
    kept = at_rest(given, RING)
    assert (kept.codec, kept.key_id, kept.storage_class) == expected


def test_the_store_is_told_what_the_settings_say():
    settings = {
        **DEFAULTS,
        "remote.storage.class": "STANDARD_IA",
        "remote.sse": "aws:kms",
        "remote.sse.kms.key.id": "k",
    }
    told = object_settings(settings)
    assert told == ObjectSettings(storage_class="STANDARD_IA", encryption="aws:kms", kms_key_id="k")
    assert told.of_small() == {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k"}
    assert told.of_upload() == told.of_small() | {"StorageClass": "STANDARD_IA"}
    assert object_settings(dict(DEFAULTS)) == ObjectSettings()


@pytest.mark.parametrize(
    ("given", "options", "chosen"),
    [
        ({}, {}, "auto"),
        ({"remote.s3.client": "s3fs"}, {}, "s3fs"),
        ({"remote.s3.client": "s3fs"}, {"client": "obstore"}, "obstore"),
    ],
)
def test_the_client_of_s3_is_that_of_the_settings_unless_the_options_name_one(given, options, chosen):
    config = Config(data_dir="/x", remote_url="s3://bucket/x", remote_options=options, defaults=given)
    assert store_options(config) == {"client": chosen}
    assert store_options(Config(data_dir="/x", remote_url="hdfs://namenode/x", defaults=given)) == {}


def test_a_key_for_kms_without_kms_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="only KMS has keys"):
        Config.load(None, {"remote.sse.kms.key.id": "k"})


def test_storage_classes_are_s3s(tmp_path):
    config = Config(
        data_dir=str(tmp_path), remote_url=f"file://{tmp_path}", defaults={"remote.storage.class": "STANDARD"}
    )
    with pytest.raises(InvalidRequest, match="S3's"):
        configured_store(config)


def test_rates_put_a_limit_around_the_store_and_their_absence_none(tmp_path):
    for given, limited in (({}, False), ({"remote.log.manager.fetch.max.bytes.per.second": "5MiB"}, True)):
        store = configured_store(Config(data_dir=str(tmp_path), remote_url=f"file://{tmp_path}", defaults=given))
        assert repr(store).startswith("ThrottledStore(") is limited


def test_a_key_ring_comes_from_the_environment_before_the_file(ring_file):
    assert load_key_ring(None, {}) is not None
    assert "one" not in load_key_ring(None, {})
    assert "one" in load_key_ring(ring_file, {})
    assert "one" in load_key_ring(None, {"TIERED_KEY_RING": ring_file})
    assert "two" not in load_key_ring(ring_file, {"TIERED_KEYS": ring_text("one").replace("\n", ";")})
    with pytest.raises(NotFound, match="no such file: file=/nowhere"):
        load_key_ring("/nowhere", {})
    with pytest.raises(InvalidRequest, match="TIERED_KEYS"):
        load_key_ring(None, {"TIERED_KEYS": "secret-text"})


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o644, 0o604, 0o602, 0o620, 0o666])
def test_a_ring_that_other_users_may_read_or_change_is_refused_at_start_and_by_doctor(world, ring_file, mode):
    config, _ = world
    Path(ring_file).chmod(mode)
    found = [each for each in examine(config, may_write=False) if each.check == "key-ring"]
    if mode in (0o600, 0o400, 0o640):
        assert [each.state for each in found] == [State.OK]
        assert "one" in load_key_ring(ring_file, {})
        return
    assert [each.state for each in found] == [State.ERROR]
    with pytest.raises(InvalidRequest, match=rf"run chmod 600 {ring_file}.* mode=0{mode:o} allowed=0600"):
        load_key_ring(ring_file, {})
    with pytest.raises(InvalidRequest, match="run chmod 600"):
        LogManager.open(config, now_ms=NOW)
    with pytest.raises(InvalidRequest, match="run chmod 600"):
        open_remote("file:///nowhere", key_ring=ring_file)


def test_a_configuration_may_name_the_ring_and_not_hold_it(tmp_path):
    toml = tmp_path / "tiered.toml"
    toml.write_text('[remote]\nkey_ring = "keys"\n')
    assert Config.load(str(toml)).key_ring == str(tmp_path / "keys")
    assert Config.load(str(toml), environ={"TIERED_KEYS": "x", "TIERED_KEY_RING": "y"}).key_ring is not None


# --- rotation ---------------------------------------------------------------------------------------------------------


def written(config, topic_settings=None, batches=2):
    manager = LogManager.open(config, now_ms=NOW)
    manager.create_topic("orders", properties=topic_settings or {}, now_ms=NOW)
    for number in range(batches):
        write(manager, 500 * number, 500)
        while manager.tick(NOW):
            pass
    return manager


def test_keys_are_rotated_without_touching_an_object(world):
    config, url = world
    store = open_store(url)
    with written(config) as manager:
        held = manager.partitions()[0]
        before = {info.key: store.get(info.key) for info in store.list("") if "/data/" in info.key}
        rows = held.head().segments
        assert rewrap_keys(held.metadata, RING, "two", NOW) == len(rows) > 1
        assert {row.key_id for row in held.head().segments} == {"two"}
        sequence = held.head().sequence
        assert rewrap_keys(held.metadata, RING, "two", NOW) == 0
        assert held.head().sequence == sequence, "nothing to do, nothing committed"
    assert {info.key: store.get(info.key) for info in store.list("") if "/data/" in info.key} == before
    with RemoteLog(store, keys=KeyRing({"two": KEYS["two"]})) as bucket:
        assert sum(1 for _ in bucket.reader().records(P0, 0)) == 1000


PREFIX = partition_prefix("t", "A" * 22, 0)


def test_rotation_reaches_rows_in_pages_and_views():
    rows = tuple(wrapped_row(f"U{at}", 10 * at, 10 * at + 10, "one") for at in range(40))
    plain = row("P", 400, 410)
    store = keyed(MemoryStore(), RING)
    rule = SpillRule(head_bytes_max=1500, page_rows_max=10, page_rows_min=5, kept_rows_min=5)
    log = MetadataLog(store, PREFIX, rule=rule)
    log.become_writer("w", 0, topic="t", topic_id="A" * 22, partition=0)
    for each in (*rows, plain):
        log.commit(add_segments([each]), 0)
    assert log.cached.spills, "some of the rows are in pages"
    view = CompactedView(name="latest", horizon_offset=10, rows=(wrapped_row("V", 0, 10, "one", view="latest"),))
    changed = rewrap(RING, "two", PREFIX)(replace(log.cached, views=(view,)))
    assert [each.key_id for each in changed.views[0].rows] == ["two"]
    assert rewrap_keys(log, RING, "two", 0) == 40
    found = log.ask(log.refresh(), lambda index: tuple(index.rows()))
    assert [each.key_id for each in found] == ["two"] * 40 + [None]
    for each in found[:-1]:
        RING.open_object("two", each.wrapped_key, PREFIX + each.data_key)


def test_no_commit_that_was_held_up_brings_a_row_under_the_old_key_after_a_rotation():
    """It had no answer, and nothing came of it yet: who is told that the key can go is not to find it used then."""
    store, held_up = MemoryStore(), []

    class HeldUp:
        url = store.url

        def __getattr__(self, verb):
            def call(*args, **more):
                if not is_away:
                    return getattr(store, verb)(*args, **more)
                if verb == "put_if_absent":
                    held_up.append(args)
                raise Unavailable("no answer", verb=verb)

            return call

    is_away = False
    log = MetadataLog(keyed(HeldUp(), RING), PREFIX)
    log.become_writer("w", 0, topic="t", topic_id="A" * 22, partition=0)
    late, other = wrapped_row("U0", 0, 10, "one"), wrapped_row("U1", 10, 20, "two")
    is_away = True
    with pytest.raises(Unavailable):
        log.commit(add_segments([late]), 0)
    is_away = False
    assert rewrap_keys(log, RING, "two", 0) == 0
    for key, body in held_up:
        with suppress(AlreadyExists):
            store.put_if_absent(key, body)
    log.commit(add_segments([other]), 0)
    assert {each.key_id for each in MetadataLog(keyed(store, RING), PREFIX).load().segments} == {"two"}


def wrapped_row(name, base, following, key_id, view=None):
    """A row under a key of the ring, as it can stand in a head."""
    key = data_key(base, following - 1, 1, ulid_of(name), view=view, is_encrypted=True)
    _, wrapped = RING.new_object(key_id, PREFIX + key)
    return row(name, base, following, view=view, data_key=key, key_id=key_id, wrapped_key=wrapped)


def test_without_the_old_key_nothing_is_rotated(world):
    config, _ = world
    with written(config, batches=1) as manager:
        held = manager.partitions()[0]
        before = held.head()
        with pytest.raises(AccessDenied, match="key_id=one"):
            rewrap_keys(held.metadata, KeyRing({"two": KEYS["two"]}), "two", NOW)
        assert held.head() == before


def test_the_command_tells_which_keys_are_used_and_changes_them(world, tmp_path, capsys):
    config, _ = world
    written(config).close()
    command = ["-C", str(tmp_path), "-X", "remote.encryption.key.id=two", "rotate-keys", "-o", "json"]

    def ran(*more):
        assert invoke([*command, *more]) == 0
        return json.loads(capsys.readouterr().out)["keys"][0]

    expected = ran("--dry-run")["rewrapped"]
    assert expected > 0
    assert ran("--dry-run")["keys"] == f"one:{expected}", "the dry run changed nothing"
    assert ran()["rewrapped"] == expected
    assert (ran()["keys"], ran()["rewrapped"], ran()["sealed"]) == (f"two:{expected}", 0, 0)


def test_rotate_keys_exits_4_where_a_manifest_of_a_partition_is_damaged(world, tmp_path, capsys):
    config, _ = world
    written(config).close()
    for path in (tmp_path / "bucket").rglob("meta/head/*"):
        body = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    for more in (["--dry-run"], []):
        assert invoke(["-C", str(tmp_path), "-X", "remote.encryption.key.id=two", "rotate-keys", *more]) == 4
        told = capsys.readouterr().err
        assert "! " in told
        assert "checksum differs" in told


def test_copies_tell_how_far_they_are(world):
    config, _ = world
    told = []
    with LogManager.open(config, now_ms=NOW) as manager:
        manager.create_topic("orders", now_ms=NOW)
        manager.partitions()[0].on_copied = lambda *facts: told.append(facts)
        write(manager, 0, 500)
        while manager.tick(NOW):
            pass
        rows = manager.partitions()[0].head().segments
    finals = {base: done for base, done, _ in told}
    assert finals == {each.base_offset: each.size_bytes for each in rows}
    assert all(done <= size for _, done, size in told)
