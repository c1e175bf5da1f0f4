"""Settings of object encoding: a manager compresses and encrypts its copies, readers decode them with the key ring."""

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
from local.verify.findings import Severity
from remote.keys import data_key, partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.manifest.page_out import PageRule
from remote.manifest.sealing import keyed
from remote.manifest.view import CompactedView
from remote.segments.encryption import KeyRing
from remote.segments.stored_segment import RAW, ZSTD
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from remote.store.s3_options import ObjectSettings
from tiered.cli.main import invoke
from tiered.config.config import Config, object_encoding
from tiered.config.properties import DEFAULTS
from tiered.config.secrets import load_key_ring
from tiered.health.doctor import examine
from tiered.jobs.key_rotation import rewrap, rewrap_keys, rotate_keys
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.stores.configured_store import configured_store, object_settings, store_options
from tiered.tables.remote_tables import open_remote

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
    manager.partitions.roll("orders", now_ms=NOW)


def test_compressed_and_encrypted_copies_are_read_with_the_key_ring(world, ring_file, monkeypatch):
    config, url = world
    with LogManager.open(config, now_ms=NOW) as manager:
        manager.topics.create("orders", now_ms=NOW)
        write(manager, 0, 500)
        while manager.tick(NOW):
            pass
        manager.topics.alter("orders", {"remote.encryption.key.id": "two", "remote.compression": "none"}, now_ms=NOW)
        write(manager, 500, 500)
        while manager.tick(NOW):
            pass
        rows = manager.partitions.all()[0].manifest().segments
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


def test_topic_with_an_unknown_key_is_refused_before_any_write(world):
    config, _ = world
    with LogManager.open(config, now_ms=NOW) as manager:
        with pytest.raises(
            InvalidRequest, match=r"not in the key ring: remote.encryption.key.id=three key_ring=KeyRing"
        ):
            manager.topics.create("orders", properties={"remote.encryption.key.id": "three"}, now_ms=NOW)
        assert manager.topics.all() == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (RAW, None, None)),
        ({"remote.compression": "zstd"}, (ZSTD, None, None)),
        ({"remote.encryption.key.id": "two", "remote.storage.class": "GLACIER_IR"}, (RAW, "two", "GLACIER_IR")),
    ],
)
def test_object_encoding_follows_the_settings(given, expected):
    kept = object_encoding(given, RING)
    assert (kept.codec, kept.key_id, kept.storage_class) == expected


def test_object_settings_of_the_store_follow_the_settings():
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
def test_s3_client_comes_from_the_settings_unless_the_options_name_one(given, options, chosen):
    config = Config(data_dir="/x", remote_url="s3://bucket/x", remote_options=options, defaults=given)
    assert store_options(config) == {"client": chosen}
    assert store_options(Config(data_dir="/x", remote_url="hdfs://namenode/x", defaults=given)) == {}


def test_kms_key_without_kms_encryption_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="only aws:kms has keys"):
        Config.load(None, {"remote.sse.kms.key.id": "k"})


def test_storage_class_is_refused_for_a_store_other_than_s3(tmp_path):
    config = Config(
        data_dir=str(tmp_path), remote_url=f"file://{tmp_path}", defaults={"remote.storage.class": "STANDARD"}
    )
    with pytest.raises(InvalidRequest, match="settings of S3"):
        configured_store(config)


def test_store_is_throttled_only_if_a_rate_is_set(tmp_path):
    for given, limited in (({}, False), ({"remote.log.manager.fetch.max.bytes.per.second": "5MiB"}, True)):
        store = configured_store(Config(data_dir=str(tmp_path), remote_url=f"file://{tmp_path}", defaults=given))
        assert repr(store).startswith("ThrottledStore(") is limited


def test_key_ring_of_the_environment_takes_precedence_over_the_file(ring_file):
    assert load_key_ring(None, {}) is not None
    assert "one" not in load_key_ring(None, {})
    assert "one" in load_key_ring(ring_file, {})
    assert "one" in load_key_ring(None, {"TIERED_KEY_RING": ring_file})
    assert "two" not in load_key_ring(ring_file, {"TIERED_KEYS": ring_text("one").replace("\n", ";")})
    with pytest.raises(NotFound, match="does not exist: file=/nowhere"):
        load_key_ring("/nowhere", {})
    with pytest.raises(InvalidRequest, match="TIERED_KEYS"):
        load_key_ring(None, {"TIERED_KEYS": "secret-text"})


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o644, 0o604, 0o602, 0o620, 0o666])
def test_key_ring_accessible_to_other_users_is_refused_at_start_and_by_doctor(world, ring_file, mode):
    config, _ = world
    Path(ring_file).chmod(mode)
    found = [each for each in examine(config, may_write=False) if each.check == "key-ring"]
    if mode in (0o600, 0o400, 0o640):
        assert [each.severity for each in found] == [Severity.OK]
        assert "one" in load_key_ring(ring_file, {})
        return
    assert [each.severity for each in found] == [Severity.ERROR]
    with pytest.raises(InvalidRequest, match=rf"run chmod 600 {ring_file}.* mode=0{mode:o} allowed=0600"):
        load_key_ring(ring_file, {})
    with pytest.raises(InvalidRequest, match="run chmod 600"):
        LogManager.open(config, now_ms=NOW)
    with pytest.raises(InvalidRequest, match="run chmod 600"):
        open_remote("file:///nowhere", key_ring=ring_file)


def test_configuration_names_the_key_ring_file_and_holds_no_keys(tmp_path):
    toml = tmp_path / "tiered.toml"
    toml.write_text('[remote]\nkey_ring = "keys"\n')
    assert Config.load(str(toml)).key_ring == str(tmp_path / "keys")
    assert Config.load(str(toml), environ={"TIERED_KEYS": "x", "TIERED_KEY_RING": "y"}).key_ring is not None


# --- rotation -------------------------------------------------------------------------------------------------------


def written(config, topic_settings=None, batches=2):
    manager = LogManager.open(config, now_ms=NOW)
    manager.topics.create("orders", properties=topic_settings or {}, now_ms=NOW)
    for number in range(batches):
        write(manager, 500 * number, 500)
        while manager.tick(NOW):
            pass
    return manager


def test_key_rotation_changes_no_data_object(world):
    config, url = world
    store = open_store(url)
    with written(config) as manager:
        held = manager.partitions.all()[0]
        before = {info.key: store.get(info.key) for info in store.list("") if "/data/" in info.key}
        rows = held.manifest().segments
        assert rewrap_keys(held.metadata, RING, "two", NOW) == len(rows) > 1
        assert {row.key_id for row in held.manifest().segments} == {"two"}
        sequence = held.manifest().sequence
        assert rewrap_keys(held.metadata, RING, "two", NOW) == 0
        assert held.manifest().sequence == sequence, "a rotation without changes must commit nothing"
    assert {info.key: store.get(info.key) for info in store.list("") if "/data/" in info.key} == before
    with RemoteLog(store, keys=KeyRing({"two": KEYS["two"]})) as bucket:
        assert sum(1 for _ in bucket.reader().records(P0, 0)) == 1000


PREFIX = partition_prefix("t", "A" * 22, 0)


def test_rotation_covers_entries_in_manifest_pages_and_views():
    rows = tuple(wrapped_row(f"U{at}", 10 * at, 10 * at + 10, "one") for at in range(40))
    plain = row("P", 400, 410)
    store = keyed(MemoryStore(), RING)
    rule = PageRule(manifest_bytes_max=1500, page_rows_max=10, page_rows_min=5, kept_entries_min=5)
    log = MetadataLog(store, PREFIX, rule=rule)
    log.become_writer("w", 0, topic="t", topic_id="A" * 22, partition=0)
    for each in (*rows, plain):
        log.commit(add_segments([each]), 0)
    assert log.cached.pages, "some entries must be in manifest pages"
    view = CompactedView(name="latest", horizon_offset=10, entries=(wrapped_row("V", 0, 10, "one", view="latest"),))
    changed = rewrap(RING, "two", PREFIX)(replace(log.cached, views=(view,)))
    assert [each.key_id for each in changed.views[0].entries] == ["two"]
    assert rewrap_keys(log, RING, "two", 0) == 40
    found = log.ask(log.refresh(), lambda index: tuple(index.entries()))
    assert [each.key_id for each in found] == ["two"] * 40 + [None]
    for each in found[:-1]:
        RING.open_object("two", each.wrapped_key, PREFIX + each.data_key)


def test_delayed_commit_cannot_add_an_entry_under_the_old_key_after_rotation():
    """A rotation must outlast every commit that was sent before it:

    1. A commit in doubt had no reply and is not applied yet.
    2. The rotation reports that the old key is no longer used, so the operator may delete it.
    3. The delayed commit must then fail.
    """
    store, held_up = MemoryStore(), []

    class HeldUp:
        url = store.url

        def __getattr__(self, verb):
            def call(*args, **more):
                if not is_away:
                    return getattr(store, verb)(*args, **more)
                if verb == "put_if_absent":
                    held_up.append(args)
                raise Unavailable("no reply", verb=verb)

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
    """A manifest entry whose data key is wrapped by a key of the ring."""
    key = data_key(base, following - 1, 1, ulid_of(name), view=view, is_encrypted=True)
    _, wrapped = RING.new_object(key_id, PREFIX + key)
    return row(name, base, following, view=view, data_key=key, key_id=key_id, wrapped_key=wrapped)


def test_rotation_without_the_old_key_changes_nothing(world):
    config, _ = world
    with written(config, batches=1) as manager:
        held = manager.partitions.all()[0]
        before = held.manifest()
        with pytest.raises(AccessDenied, match="key_id=one"):
            rewrap_keys(held.metadata, KeyRing({"two": KEYS["two"]}), "two", NOW)
        assert held.manifest() == before


def test_rotate_keys_command_shows_the_used_keys_and_changes_them(world, tmp_path, capsys):
    config, _ = world
    written(config).close()
    command = ["-C", str(tmp_path), "-X", "remote.encryption.key.id=two", "rotate-keys", "-o", "json"]

    def ran(*more):
        assert invoke([*command, *more]) == 0
        return json.loads(capsys.readouterr().out)["keys"][0]

    expected = ran("--dry-run")["rewrapped"]
    assert expected > 0
    assert ran("--dry-run")["keys"] == f"one:{expected}", "the dry run must change nothing"
    assert ran()["rewrapped"] == expected
    assert (ran()["keys"], ran()["rewrapped"], ran()["sealed"]) == (f"two:{expected}", 0, 0)


def test_dry_run_of_a_rotation_counts_the_parts_of_views(world, tmp_path):
    config, _ = world
    with written(config) as manager:
        manager.append("orders", [Record(b"key", b"value", NOW)], now_ms=NOW)
        manager.partitions.roll("orders", now_ms=NOW)
        while manager.tick(NOW):
            pass
        build_views(manager, plan_views(manager, "orders", now_ms=NOW))
        segments = len(manager.partitions.all()[0].manifest().segments)
    config = Config.load(str(tmp_path / "tiered.toml"), {"remote.encryption.key.id": "two"})
    with LogManager.open(config, now_ms=NOW) as manager:
        (planned,) = rotate_keys(manager, now_ms=NOW, dry_run=True)
        (done,) = rotate_keys(manager, now_ms=NOW)
    assert planned.rewrapped == done.rewrapped > segments


def test_rotate_keys_with_a_damaged_manifest_exits_4(world, tmp_path, capsys):
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


def test_copies_report_their_progress(world):
    config, _ = world
    told = []
    with LogManager.open(config, now_ms=NOW) as manager:
        manager.topics.create("orders", now_ms=NOW)
        manager.partitions.all()[0].on_copied = lambda *facts: told.append(facts)
        write(manager, 0, 500)
        while manager.tick(NOW):
            pass
        rows = manager.partitions.all()[0].manifest().segments
    finals = {base: done for base, done, _ in told}
    assert finals == {each.base_offset: each.size_bytes for each in rows}
    assert all(done <= size for _, done, size in told)
