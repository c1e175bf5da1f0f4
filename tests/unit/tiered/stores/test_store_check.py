"""Recorded store guarantees in a log directory: valid for one store, one way to reach it, and a limited time."""

from __future__ import annotations

import threading

import pytest
from disk_model import ModelDisk

from local.errors import AlreadyExists, InvalidRequest, Unavailable
from remote.store.memory_store import MemoryStore
from remote.store.probe import RACERS
from tiered.stores.configured_store import FILE, LATER_MS, MAX_AGE_MS, StoreCheck

NOW = 1_700_000_000_000
URL = "s3://bucket/root"
CREATES = 2 + RACERS


class Counting(MemoryStore):
    """A store that counts creates. `fault` is raised before each create."""

    def __init__(self, url=URL):
        super().__init__(url)
        self.creates, self.fault = 0, None

    def put_if_absent(self, key, body):
        self.creates += 1
        if self.fault is not None:
            raise self.fault
        super().put_if_absent(key, body)


class Hasty(MemoryStore):
    """A store whose create is a read followed by a write. All racing creates read before the first one writes."""

    def __init__(self):
        super().__init__(URL)
        self._looked = threading.Barrier(RACERS)

    def put_if_absent(self, key, body):
        if any(True for _ in self.list(key)):
            raise AlreadyExists("cannot create an object", key=key)
        if body.startswith(b"tiered probe by"):
            self._looked.wait(60)
        self.put(key, body)


@pytest.fixture
def disk():
    return ModelDisk()


def check(disk, *, single=False, options=None):
    return StoreCheck(lambda: (disk, "."), is_single_writer=single, options=options or {})


def asked(disk, now_ms, *, url=URL, options=None):
    """Whether a process that starts now probes the store."""
    store = Counting(url)
    check(disk, options=options).ensure(store, now_ms)
    assert store.creates in (0, CREATES)
    return store.creates > 0


def test_recorded_answer_is_valid_for_a_week_over_restarts(disk):
    assert asked(disk, NOW)
    assert not asked(disk, NOW + MAX_AGE_MS - 1)
    assert asked(disk, NOW + MAX_AGE_MS)
    assert not asked(disk, NOW + MAX_AGE_MS + 1), "the new answer must be valid for another week"


def test_answer_recorded_by_a_clock_that_was_ahead_is_ignored(disk):
    assert asked(disk, NOW + 1)
    assert asked(disk, NOW)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"url": URL}, {"url": "s3://bucket/other"}),
        ({}, {"options": {"endpoint_url": "http://other:9000"}}),
        ({"options": {"client_kwargs": {"region_name": "a"}}}, {"options": {"client_kwargs": {"region_name": "b"}}}),
        ({"options": {"client": "s3fs"}}, {"options": {"client": "obstore"}}),
    ],
)
def test_other_store_or_other_options_are_probed_again(disk, before, after):
    assert asked(disk, NOW, **before)
    assert not asked(disk, NOW, **before)
    assert asked(disk, NOW, **after)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "HADOOP_CONF_DIR"])
def test_other_endpoint_in_the_environment_is_probed_again(disk, monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert asked(disk, NOW)
    monkeypatch.setenv(name, "elsewhere")
    assert asked(disk, NOW)


def test_secrets_are_not_recorded_and_a_rotated_secret_needs_no_probe(disk):
    options = {"endpoint_url": "http://127.0.0.1:9000", "key": "k", "secret": "hunter2"}
    assert asked(disk, NOW, options=options)
    kept = disk.read(f"./{FILE}")
    assert b"hunter2" not in kept
    assert b"9000" not in kept
    assert not asked(disk, NOW, options={**options, "secret": "rotated"})


@pytest.mark.parametrize("kept", [b"", b"{}", b'{"url":"s3://bucket/root","create_if_absent":true}', b"\xff"])
def test_record_of_an_older_version_or_a_torn_write_is_ignored(disk, kept):
    file = disk.create(f"./{FILE}")
    file.append(kept)
    file.close()
    assert asked(disk, NOW)


def test_store_without_atomic_create_is_refused_and_not_recorded(disk):
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"remote\.single\.writer=true: store=s3://bucket/root"):
            check(disk).ensure(Hasty(), NOW)
    check(disk, single=True).ensure(Hasty(), NOW)
    with pytest.raises(InvalidRequest):
        check(disk).ensure(Hasty(), NOW)


def test_running_process_probes_again_once_a_week(disk):
    store, one = Counting(), check(disk)
    one.renew(store, NOW)
    assert store.creates == 0, "nothing may be created before the first answer"
    one.ensure(store, NOW)
    for day in range(30):
        one.renew(store, NOW + day * 86_400_000)
    assert store.creates == CREATES * 5


def test_running_process_stops_when_the_store_loses_its_guarantee(disk):
    one = check(disk)
    one.ensure(Counting(), NOW)
    due = NOW + MAX_AGE_MS
    with pytest.raises(InvalidRequest, match=r"remote\.single\.writer=true"):
        one.renew(Hasty(), due)
    mended, told = Counting(), []
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"remote\.single\.writer=true: store=s3://bucket/root") as found:
            one.renew(mended, due + LATER_MS - 1)
        told.append(found.value)
    assert told[0] is not told[1], "each caller must get its own exception object"
    assert mended.creates == 0
    one.renew(mended, due + LATER_MS)
    one.renew(mended, due + LATER_MS)
    assert mended.creates == CREATES


def test_unreachable_store_is_probed_an_hour_later_and_trusted_until_then(disk):
    store, one = Counting(), check(disk)
    one.ensure(store, NOW)
    store.fault = Unavailable("cannot create an object")
    due = NOW + MAX_AGE_MS
    one.renew(store, due)
    tried = store.creates
    one.renew(store, due + LATER_MS - 1)
    assert store.creates == tried
    store.fault = None
    one.renew(store, due + LATER_MS)
    assert store.creates == tried + CREATES
