"""One damaged entry, page, manifest or object is a finding.
The rest of the bucket is processed as usual.
Proven for scrub, verify, listing and restore."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from manager_world import NOW, World, send, settle
from remote_samples import forged

from local.errors import AccessDenied, Corrupt, InvalidRequest, Unavailable
from remote.keys import MANIFESTS, manifest_key
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import PendingDelete
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.read.bucket_reader import RemoteLog

pytestmark = pytest.mark.damages_bucket
TOPICS = ("a", "b", "c")


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    """Three topics in a bucket, with several segments each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n'
        '[defaults]\n"remote.storage.enable" = true\n"segment.bytes" = "1KiB"\n"append.batch.bytes" = "256"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"value {at}\n" for at in range(300)))
    words = ["-C", str(tmp_path)]
    for topic in TOPICS:
        assert invoke([*words, "topic", "create", topic]) == 0
        assert invoke([*words, "append", topic, "lines"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def forge(tmp_path: Path, topic: str, change) -> None:
    """Replaces the newest manifest by a forged one."""
    store = open_store(f"file://{tmp_path}/bucket")
    (name,) = [each for each in list_partitions(store) if each.topic == topic]
    manifest = MetadataLog(store, name.prefix).refresh()
    store.put(name.prefix + manifest_key(manifest.sequence), forged(change(manifest)))
    store.close()


def flip(tmp_path: Path, topic: str, number: int) -> str:
    path = sorted((tmp_path / "bucket").glob(f"{topic}-*/0/data/*.log"))[number]
    body = bytearray(path.read_bytes())
    body[100] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(body))
    return path.name


def forged_entry(**changes):
    """A forgery that changes fields of the second entry."""

    def change(manifest):
        return replace(
            manifest, segments=(manifest.segments[0], replace(manifest.segments[1], **changes), *manifest.segments[2:])
        )

    return change


FORGERIES = {
    "illegal key": forged_entry(data_key="data/../../x?y"),
    "offset beyond int64": forged_entry(next_offset=2**63),
    "leader epoch": forged_entry(epochs=((2**40, 0),)),
    "checksum": forged_entry(data_crc32c=2**40),
    "overlap": forged_entry(base_offset=0),
    "pending delete of a head": lambda manifest: replace(
        manifest, pending_deletes=(PendingDelete(key=manifest_key(1), size_bytes=1, unlinked_ms=1, epoch=1),)
    ),
    "another topic": lambda manifest: replace(manifest, topic="zzz"),
    "sequence": lambda manifest: replace(manifest, sequence=10**20),
}


@pytest.mark.parametrize("command", [["scrub", "--deep"], ["verify", "--remote", "--deep"]])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_manifest_is_a_finding_and_everything_else_is_checked(at, tmp_path, capfd, command, forgery):
    forge(tmp_path, "a", FORGERIES[forgery])
    elsewhere, beside = flip(tmp_path, "c", 3), flip(tmp_path, "a", 4)
    assert invoke([*at, *command, "-o", "json"]) == 4
    out, said = capfd.readouterr()
    found = [each for each in json.loads(out)["findings"] if each["severity"] == "corrupt"]
    told = [each.get("object", each.get("path")) for each in found]
    assert any(elsewhere in each for each in told), "damage of another partition must be found"
    assert any(beside in each for each in told) or forgery in ("another topic", "sequence"), (
        "damage of the same partition must be found"
    )
    assert any("readers refuse this manifest" in each["what"] for each in found)
    assert "Traceback" not in said


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_manifest_does_not_hide_the_other_topics_in_a_listing(at, tmp_path, capfd, forgery):
    forge(tmp_path, "a", FORGERIES[forgery])
    assert invoke([*at, "remote", "ls", f"file://{tmp_path}/bucket", "-o", "json"]) == 4
    out, said = capfd.readouterr()
    entries = {each["topic"]: each for each in json.loads(out)["partitions"]}
    assert entries.keys() == set(TOPICS)
    assert (entries["a"]["segments"], entries["a"]["size_bytes"], entries["a"]["next_offset"]) == (None, None, None)
    assert "manifest" in entries["a"]["error"]
    assert entries["b"]["segments"] == entries["c"]["segments"] > 3
    assert "! a/0: " in said


@pytest.mark.parametrize("damage", ["manifest", "segment", "missing"])
def test_topic_that_cannot_be_restored_does_not_stop_the_others(at, tmp_path, capfd, damage):
    if damage == "manifest":
        forge(tmp_path, "a", FORGERIES["illegal key"])
    elif damage == "segment":
        flip(tmp_path, "a", 2)
    else:
        sorted((tmp_path / "bucket").glob("a-*/0/data/*.log"))[2].unlink()
    assert invoke([*at, "restore", *TOPICS, "--to", "back", "--yes"]) in (1, 4)
    said = capfd.readouterr().err
    assert "! a/0: " in said
    assert sorted(path.name for path in (tmp_path / "back").glob("*-0")) == ["b-0", "c-0"]
    assert invoke([*at, "restore", "a", "--to", "alone", "--yes"]) in (1, 4)
    assert not list((tmp_path / "alone").glob("a-0"))


class Refusing:
    """A store that raises `error` for every call that names one of `keys`."""

    def __init__(self, inner, error, *keys):
        self._inner, self._error, self._keys = inner, error, keys

    def __getattr__(self, verb):
        def call(*args, **more):
            if verb != "list" and any(part in str(args) for part in self._keys):
                raise self._error("cannot read an object, refused", key=args[0], cause="a test")
            return getattr(self._inner, verb)(*args, **more)

        return call if callable(getattr(self._inner, verb)) else getattr(self._inner, verb)


@pytest.fixture
def bucket():
    world = World()
    with world.open() as manager:
        for topic in TOPICS:
            manager.topics.create(topic, 1, {"remote.storage.enable": "true"}, now_ms=NOW)
            send(manager, 200, topic=topic)
        settle(manager)
    return world.store


def scrubbed(store, names):
    plan = plan_scrub(store, names, deep=True)
    results = run_scrub(store, plan, threads=1)
    return report_of(store, plan, results, started_ms=NOW, now_ms=NOW)


@pytest.mark.parametrize("error", [AccessDenied, InvalidRequest, Unavailable])
@pytest.mark.parametrize(
    "kind", ["data", "indexes", "first head", "older manifests were collected and no newer manifest is listed"]
)
def test_unreadable_object_is_a_finding_and_the_rest_is_scrubbed(bucket, error, kind):
    names = list_partitions(bucket)
    manifest = MetadataLog(bucket, names[0].prefix).refresh()
    entry = manifest.segments[1]
    refused = {
        "data": entry.data_key,
        "indexes": entry.indexes_key,
        "first head": manifest_key(1),
        "older manifests were collected and no newer manifest is listed": manifest_key(manifest.sequence),
    }[kind]
    wrong = MetadataLog(bucket, names[2].prefix).refresh().segments[0].data_key
    body = bytearray(bucket.get(names[2].prefix + wrong))
    body[70] ^= 1
    bucket.put(names[2].prefix + wrong, bytes(body))
    report = scrubbed(Refusing(bucket, error, names[0].prefix + refused), names)
    told = {each.object for each in report.findings if each.severity != "info"}
    assert refused in told
    assert wrong in told
    assert len(report.partitions) == 3


@pytest.mark.parametrize("error", [AccessDenied, Unavailable])
def test_store_that_refuses_every_read_ends_the_scrub(bucket, error):
    with pytest.raises(error):
        scrubbed(Refusing(bucket, error, "/"), list_partitions(bucket))


@pytest.mark.parametrize("error", [AccessDenied, InvalidRequest, Corrupt])
def test_unreadable_partition_is_a_finding(bucket, error):
    names = list_partitions(bucket)
    report = scrubbed(Refusing(bucket, error, names[1].prefix), names)
    assert {each.topic for each in report.findings if each.severity != "info"} == {"b"}
    assert [each.segments > 0 for each in report.partitions] == [True, False, True]


@pytest.mark.parametrize("error", [AccessDenied, InvalidRequest, Corrupt])
def test_topic_with_an_unreadable_manifest_is_still_listed(bucket, error):
    names = list_partitions(bucket)
    assert RemoteLog(Refusing(bucket, error, names[1].prefix + MANIFESTS)).topics() == list(TOPICS)


def test_partition_without_a_manifest_is_a_finding(bucket):
    names = list_partitions(bucket)
    bucket.delete([info.key for info in bucket.list(names[1].prefix) if MANIFESTS in info.key])
    assert any("no manifest" in each.what for each in scrubbed(bucket, names).findings)
