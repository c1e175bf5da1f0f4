"""Object encoding of every writer of data objects, under every setting of the remote tier.

A writer is a function that fills a bucket by one command under given settings. Its entries are read from the
manifests. `ENCODINGS` says what a setting must do to an entry. `test_bulk_ingest_*` use the library, because ingest
has no command.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from external_samples import put_log, write_log
from source_files import calls, trees
from test_adopting import NAME as ADOPTED
from test_adopting import Broker
from test_ingest import manifest, plan, write

from local.errors import InvalidRequest
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import set_properties
from remote.manifest.sealing import keyed
from remote.segment_entry import SegmentEntry
from remote.segments import stored_segment as at_rest_module
from remote.segments.encryption import KeyRing
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from remote.store.s3_options import ObjectSettings
from tiered.cli.main import invoke
from tiered.config.config import KEY_ID, STORAGE_CLASS, Config
from tiered.config.properties import PROPERTIES
from tiered.jobs.ingest import commit_ingest
from tiered.stores import configured_store as configured_store_module
from tiered.stores.configured_store import addressed_store, configured_store
from tiered.stores.object_encoding import BucketSettings, encoding_of_entry, with_key_of

KEYS = {"one": bytes(range(32)), "two": bytes(range(32, 64))}
PLAIN = ("-X", "cleanup.policy=delete")  # a broker of these tests has no metadata
MARK = b"value "  # part of every record of every writer
LEVEL = "19"
Settings = dict[str, str]


@dataclass
class Place:
    """A node directory with a configuration, its bucket, and the directory of a broker."""

    home: Path
    told: list[str] = field(default_factory=list)

    def configure(self, settings: Settings) -> None:
        lines = [f'"{name}" = "{value}"' for name, value in settings.items()]
        ring = "".join(f"{name} {base64.b64encode(key).decode()}\n" for name, key in KEYS.items())
        (self.home / "keys").write_text(ring)
        (self.home / "keys").chmod(0o600)
        (self.home / "keys").chmod(0o600)
        (self.home / "bucket").mkdir(exist_ok=True)
        (self.home / "tiered.toml").write_text(
            f'[local]\ndir = "data"\n[remote]\nurl = "{self.url}"\nkey_ring = "keys"\n[defaults]\n'
            '"segment.bytes" = "4KiB"\n"append.batch.bytes" = "512"\n"min.cleanable.dirty.ratio" = "0"\n'
            + "\n".join(lines)
        )

    @property
    def url(self) -> str:
        return (self.home / "bucket").as_uri()

    def run(self, *words: str) -> int:
        return invoke(["-C", str(self.home), *words])

    def append(self, topic: str, *settings: str) -> None:
        lines = "".join(f"key{at % 20}:value {at} {'x' * 40}\n" for at in range(600))
        (self.home / "lines").write_text(lines)
        options = [word for each in ("remote.storage.enable=true", *settings) for word in ("-X", each)]
        assert self.run("topic", "create", topic, *options) == 0
        assert self.run("append", topic, str(self.home / "lines"), "-K", ":") == 0
        assert self.run("run", "--once") == 0

    def entries(self, url: str | None = None) -> list[tuple[str, SegmentEntry]]:
        """Every entry that a manifest names, with the prefix of its partition."""
        store = keyed(open_store(url or self.url), KeyRing(KEYS))
        found = []
        for name in list_partitions(store):
            log = MetadataLog(store, name.prefix)
            newest = log.load()
            assert newest is not None
            parts = [part for view in newest.views for part in view.entries]
            found += [(name.prefix, row) for row in (*log.index(newest).entries(), *parts)]
        store.close()
        return found

    def objects(self) -> list[Path]:
        """Data objects of the bucket, without pins and manifests."""
        return [each for each in (self.home / "bucket").rglob("*.log*") if each.is_file()]


Writer = Callable[[Place, Settings], int]


def _manager(place: Place, settings: Settings) -> int:
    place.configure(settings)
    lines = "".join(f"key{at % 20}:value {at} {'x' * 40}\n" for at in range(600))
    (place.home / "lines").write_text(lines)
    return place.run("topic", "create", "t", "-X", "remote.storage.enable=true") or (
        place.run("append", "t", str(place.home / "lines"), "-K", ":") or place.run("run", "--once")
    )


def _after(*command: str, topic: str = "t", own: tuple[str, ...] = ()) -> Writer:
    """A writer that works on segments that a manager copied as plaintext before."""

    def write(place: Place, settings: Settings) -> int:
        place.configure({})
        place.append(topic, *own)
        before = {row.ulid for _, row in place.entries()}
        place.configure(settings)
        code = place.run(*command)
        place.told = sorted(before)
        return code

    return write


def _adopt(*, is_compacted: bool) -> Writer:
    def write(place: Place, settings: Settings) -> int:
        place.configure(settings)
        broker = Broker(place.home, is_compacted=is_compacted)
        broker.send(300)
        broker.settle()
        options = ["-X", f"cleanup.policy={'compact' if is_compacted else 'delete'}"]
        return place.run("adopt", broker.root, ADOPTED.topic, "--once", *options)

    return write


def _adopt_with_options(place: Place, settings: Settings) -> int:
    """Adopt with the settings given by -X, like the operator of a broker."""
    place.configure({})
    broker = Broker(place.home)
    broker.send(300)
    broker.settle()
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    return place.run("adopt", broker.root, "--once", *PLAIN, *options)


def _import(place: Place, settings: Settings) -> int:
    place.configure(settings)
    sample = write_log(place.home / "theirs-log" / "orders-eu-3")
    (place.home / "theirs").mkdir()
    store = open_store((place.home / "theirs").as_uri())
    for files in sample.segments:
        put_log(store, files)
    store.close()
    return place.run("import", (place.home / "theirs").as_uri(), "--layout", "logs", "--yes")


def _repair(place: Place, settings: Settings) -> int:
    place.configure({})
    place.append("t", "local.retention.ms=-2")
    place.told = sorted(row.ulid for _, row in place.entries())
    damaged = sorted(place.objects())[0]
    body = bytearray(damaged.read_bytes())
    body[100] ^= 1
    damaged.chmod(0o600)
    damaged.write_bytes(bytes(body))
    report = str(place.home / "report.json")
    assert place.run("scrub", "--deep", "--report", report) == 4
    place.configure(settings)
    return place.run("repair", report, "--yes")


WRITERS: dict[str, Writer] = {
    "manager": _manager,
    "view": _after("view", "build", "t"),
    "bucket compaction": _after("-X", "cleanup.policy=compact", "compact", "t", "--bucket"),
    "adopt": _adopt(is_compacted=False),
    "adopt compacted": _adopt(is_compacted=True),
    "adopt by options": _adopt_with_options,
    "import": _import,
    "merge": _after("rewrite", "merge", "t", "--yes"),
    "repair": _repair,
}
WRITERS["recode"] = _after("rewrite", "recode", "t", "--codec", "zstd", "--yes")
KEEPS_CODEC = {"merge", "repair", "recode"}  # the codec comes from the entry or from an option


def _written(place: Place) -> list[tuple[str, SegmentEntry]]:
    """The entries made by the writer under test, without those that existed before."""
    return [(prefix, row) for prefix, row in place.entries() if row.ulid not in place.told]


def _is_in_the_clear(place: Place, prefix: str, row: SegmentEntry) -> bool:
    return MARK in (place.home / "bucket" / (prefix + row.data_key)).read_bytes()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_encrypts_under_the_configured_key(writer: str, place: Place) -> None:
    assert WRITERS[writer](place, {KEY_ID: "one"}) == 0
    written = _written(place)
    assert written, "the writer must have written an entry"
    assert {row.key_id for _, row in written} == {"one"}
    assert not any(_is_in_the_clear(place, prefix, row) for prefix, row in written)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_without_a_key_writes_plaintext(writer: str, place: Place) -> None:
    """The mark is found in plaintext objects. So the search of the encryption test can fail."""
    assert WRITERS[writer](place, {}) == 0
    written = _written(place)
    assert {row.key_id for _, row in written} == {None}
    assert any(_is_in_the_clear(place, prefix, row) for prefix, row in written) or writer in (
        "recode",
        "import",
        "adopt compacted",
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_compresses_as_configured(writer: str, place: Place, monkeypatch) -> None:
    levels = set()
    inner = at_rest_module._compressed

    def compressed(chunk, level):
        levels.add(level)
        return inner(chunk, level)

    monkeypatch.setattr(at_rest_module, "_compressed", compressed)
    assert WRITERS[writer](place, {"remote.compression": "zstd", "remote.compression.zstd.level": LEVEL}) == 0
    if writer not in KEEPS_CODEC:
        assert {row.codec for _, row in _written(place)} == {"zstd"}
    if writer not in KEEPS_CODEC - {"recode"}:
        assert levels == {int(LEVEL)}


@pytest.mark.parametrize(
    "settings",
    [{KEY_ID: "unknown"}, {"remote.storage.class": "STANDARD_IA"}, {"remote.sse": "AES256"}],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.parametrize("writer", WRITERS)
def test_setting_that_a_writer_cannot_apply_is_refused(writer: str, settings: Settings, place: Place, capfd) -> None:
    """A key that the ring lacks, and settings of S3 for a bucket that is a directory."""
    assert WRITERS[writer](place, settings) != 0
    assert _written(place) == []
    said = capfd.readouterr().err
    assert any(name in said for name in settings) or "settings of S3" in said


def test_every_remote_setting_is_covered_or_listed_as_irrelevant() -> None:
    """A new setting of the remote tier must be added to the tests above, or to the settings that change no object."""
    encoding = {KEY_ID, "remote.compression", "remote.compression.zstd.level", "remote.storage.class", "remote.sse"}
    of_store = {"remote.sse.kms.key.id", "remote.s3.client", "remote.immutable"}
    rates = {f"remote.log.manager.{way}.max.bytes.per.second" for way in ("copy", "fetch")}
    when = {"remote.storage.enable", "remote.log.copy.disable", "remote.copy.lag.ms", "remote.copy.lag.bytes"}
    when |= {"remote.copy.window"}
    ends = {"remote.log.delete.grace.ms", "remote.log.delete.on.disable"}
    ends |= {"remote.recompaction.min.reduction.ratio", "remote.recompaction.min.saved.bytes"}
    node = {"remote.fetch.cache.bytes", "remote.fetch.cache.dir", "remote.fetch.cache.dir.max.bytes"}
    node |= {"remote.single.writer", "remote.log.manager.task.interval.ms"}
    node |= {f"remote.log.manager.{pool}.thread.pool.size" for pool in ("copier", "expiration")}
    known = encoding | of_store | rates | when | ends | node
    assert {name for name in PROPERTIES if name.startswith("remote.")} == known


@pytest.mark.parametrize(
    "name",
    [
        "remote.log.copy.disable=true",
        "remote.copy.lag.ms=1h",
        "remote.copy.lag.bytes=1",
        "remote.copy.window=22:00-06:00",
    ],
)
@pytest.mark.parametrize("where", ["option", "file"])
def test_adopt_refuses_settings_of_copy_lag(name: str, where: str, place: Place, capfd) -> None:
    key, _, value = name.partition("=")
    place.configure({key: value} if where == "file" else {})
    broker = Broker(place.home)
    broker.send(300)
    broker.settle()
    options = ["-X", name] if where == "option" else []
    assert place.run("adopt", broker.root, "--once", *PLAIN, *options) == 2
    assert key in capfd.readouterr().err
    assert place.entries() == []


def test_a_copy_to_another_bucket_encrypts_what_was_plaintext(place: Place) -> None:
    place.configure({})
    place.append("t")
    place.configure({KEY_ID: "one"})
    (place.home / "other").mkdir()
    url = (place.home / "other").as_uri()
    assert place.run("rewrite", "copy", "t", "--to", url, "--yes") == 0
    assert {row.key_id for _, row in place.entries(url)} == {"one"}


def test_recode_with_decrypt_removes_encryption(place: Place) -> None:
    assert _manager(place, {KEY_ID: "one"}) == 0
    assert place.run("rewrite", "recode", "t", "--decrypt", "--yes") == 0
    assert {row.key_id for _, row in place.entries()} == {None}


def test_import_with_a_key_id_sets_the_key_in_the_manifest(place: Place) -> None:
    place.configure({})
    write_log(place.home / "unused" / "orders-eu-3")
    (place.home / "theirs").mkdir()
    store = open_store((place.home / "theirs").as_uri())
    for files in write_log(place.home / "theirs-log" / "orders-eu-3").segments:
        put_log(store, files)
    store.close()
    words = ["import", (place.home / "theirs").as_uri(), "--layout", "logs", "--key-id", "two", "--yes"]
    assert place.run(*words) == 0
    assert {row.key_id for _, row in place.entries()} == {"two"}
    store = keyed(open_store(place.url), KeyRing(KEYS))
    (name,) = list_partitions(store)
    newest = MetadataLog(store, name.prefix).load()
    assert newest is not None
    assert newest.properties == {KEY_ID: "two"}


# --- jobs without a node configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("has_setting", [True, False])
def test_bulk_ingest_after_encrypted_entries_is_encrypted(has_setting: bool) -> None:
    """Spark has a bucket and no node configuration. The second job has no key setting."""
    ring = KeyRing(KEYS)
    store = keyed(MemoryStore(), ring)
    first = plan(store, settings={"segment.bytes": "4096", KEY_ID: "one"}, create_partitions=1, keys=ring)
    commit_ingest(store, first, [write(store, first, 0, {0: 100}, keys=ring)], now_ms=first.now_ms)
    log = MetadataLog(store, first.targets[0].name.prefix)
    if not has_setting:
        other = MetadataLog(store, first.targets[0].name.prefix)
        other.join(epoch=log.refresh().epoch)
        other.commit(set_properties({}), first.now_ms)
    second = plan(store, settings={"segment.bytes": "4096"}, create_partitions=None, job_id="later", keys=ring)
    commit_ingest(store, second, [write(store, second, 0, {0: 100}, keys=ring)], now_ms=first.now_ms)
    assert {row.key_id for row in manifest(store).segments} == {"one"}


def test_bulk_ingest_without_the_key_in_its_ring_is_refused() -> None:
    ring = KeyRing(KEYS)
    store = keyed(MemoryStore(), ring)
    first = plan(store, settings={"segment.bytes": "4096", KEY_ID: "one"}, create_partitions=1, keys=ring)
    with pytest.raises(InvalidRequest, match=r"not in the key ring: remote\.encryption\.key\.id=one"):
        write(store, first, 0, {0: 100})


def test_key_of_the_settings_takes_precedence_over_the_key_of_entries(place: Place) -> None:
    assert _manager(place, {KEY_ID: "one"}) == 0
    entries = [row for _, row in place.entries()]
    assert with_key_of({}, entries)[KEY_ID] == "one"
    assert with_key_of({KEY_ID: ""}, entries)[KEY_ID] == "one"
    assert with_key_of({KEY_ID: "two"}, entries)[KEY_ID] == "two"
    assert encoding_of_entry(entries[0], {KEY_ID: "two"}).key_id == "one"


@pytest.mark.parametrize("stored", [None, "GLACIER_IR"])
def test_rewritten_entry_has_the_storage_class_of_the_opened_store(stored: str | None, place: Place) -> None:
    assert _manager(place, {}) == 0
    entry = replace(place.entries()[0][1], storage_class=stored)
    assert encoding_of_entry(entry).storage_class == stored
    for text, expected in (("default", None), ("STANDARD_IA", "STANDARD_IA")):
        for known in (
            Config(data_dir="", defaults={STORAGE_CLASS: text}).topic_properties("t"),
            BucketSettings(config=Config(data_dir="", overrides={STORAGE_CLASS: text}), is_node=False).of("t", {}),
        ):
            assert encoding_of_entry(entry, known).storage_class == expected


# --- structure ------------------------------------------------------------------------------------------------------


def test_no_writer_constructs_its_own_object_encoding() -> None:
    """`ObjectEncoding` is constructed in two modules only, and every upload of a segment is given one."""
    makers, bare = set(), []
    for path, tree in trees(r"ObjectEncoding\(|copy_segment\(", ("tiered",)):
        for call in calls(tree):
            name = getattr(call.func, "id", "")
            if name == "ObjectEncoding":
                makers.add(Path(path).stem)
            if name == "copy_segment" and "object_encoding" not in {word.arg for word in call.keywords}:
                bare.append(f"{path}:{call.lineno}")
    assert makers == {"config", "object_encoding"}
    assert bare == []


# --- bucket named by its address ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["import"], ["adopt"], ["compact", "t"], ["rewrite", "merge"]])
@pytest.mark.parametrize("setting", ["remote.storage.class=STANDARD_IA", "remote.sse=AES256"])
def test_s3_settings_are_refused_for_a_bucket_address_that_is_not_s3(
    command: list[str], setting: str, place: Place, capfd
) -> None:
    place.configure({})
    broker = Broker(place.home)
    of_command = {"import": [Path(broker.root).as_uri()], "adopt": [broker.root, "--once", *PLAIN]}.get(command[0], [])
    words = ["-X", setting, *command, *of_command, "--remote", place.url]
    assert place.run(*words) == 2
    assert "settings of S3" in capfd.readouterr().err


def test_every_store_setting_applies_to_a_bucket_address(tmp_path: Path, monkeypatch) -> None:
    opened = {}

    def open_store(url, options, *, objects, **named):
        opened.update(options=options, objects=objects)
        return MemoryStore(url)

    monkeypatch.setattr(configured_store_module, "open_store", open_store)
    given = {
        "remote.storage.class": "STANDARD_IA",
        "remote.sse": "aws:kms",
        "remote.sse.kms.key.id": "k",
        "remote.s3.client": "s3fs",
        "remote.immutable": "true",
        "remote.log.manager.copy.max.bytes.per.second": "1MiB",
    }
    for store in (
        addressed_store("s3://bucket/x", {}, Config(data_dir="", overrides=given)),
        configured_store(Config(data_dir="", remote_url="s3://bucket/x", defaults=given)),
    ):
        assert opened["objects"] == ObjectSettings(storage_class="STANDARD_IA", encryption="aws:kms", kms_key_id="k")
        assert opened["options"] == {"client": "s3fs"}
        assert repr(store).startswith("ThrottledStore(ImmutableStore(")


def test_encryption_key_of_the_environment_applies_to_a_bucket_address(place: Place, monkeypatch) -> None:
    place.configure({})
    broker = Broker(place.home)
    broker.send(300)
    broker.settle()
    monkeypatch.setenv("TIERED_REMOTE_ENCRYPTION_KEY_ID", "one")
    monkeypatch.setenv("TIERED_KEY_RING", str(place.home / "keys"))
    assert place.run("adopt", broker.root, "--once", "--remote", place.url, *PLAIN) == 0
    assert {row.key_id for _, row in place.entries()} == {"one"}


# --- plaintext of earlier uploads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("by", ["file", "manifest"])
def test_scrub_finds_plaintext_segments_of_an_encrypted_topic(deep: bool, by: str, place: Place, capfd) -> None:
    """An earlier version of the sidecar left this state: the settings name a key, and the segments are plaintext."""
    place.configure({})
    broker = Broker(place.home)
    broker.send(300)
    broker.settle()
    assert place.run("adopt", broker.root, "--once", *PLAIN) == 0
    words = ["scrub", "-o", "json", *(["--deep"] if deep else [])]
    assert place.run(*words) == 0
    capfd.readouterr()
    place.configure({KEY_ID: "one"} if by == "file" else {})
    if by == "manifest":
        store = keyed(open_store(place.url), KeyRing(KEYS))
        log = MetadataLog(store, list_partitions(store)[0].prefix)
        log.join()
        log.commit(set_properties({KEY_ID: "one"}), 1)
        store.close()
    assert place.run(*words) == 3
    (found,) = _told_of_plaintext(capfd)
    assert found["severity"] == "warning"
    assert "plaintext segments although the topic has remote.encryption.key.id=one" in found["what"]
    assert "tiered rewrite recode t --key-id one" in found["what"]
    assert (found["base_offset"], found["next_offset"]) == (0, place.entries()[-1][1].next_offset)
    assert place.run("rewrite", "recode", "t", "--key-id", "one", "--yes") == 0
    capfd.readouterr()
    place.run(*words)
    assert _told_of_plaintext(capfd) == []


def _told_of_plaintext(capfd) -> list[dict]:
    return [each for each in json.loads(capfd.readouterr().out)["findings"] if "plaintext" in each["what"]]
