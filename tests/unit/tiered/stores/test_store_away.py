"""Unreachable store: offsets on the disk are served and appends acknowledged without a wait, on any store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread, current_thread

import pytest
from manager_world import NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import AccessDenied, LogError, NotFound, Unavailable
from remote.store import ObjectStore, UploadSource, ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import RetryBudget, RetryingStore, RetryPolicy
from tiered.cli.main import invoke
from tiered.stores import configured_store
from tiered.stores.configured_store import BriefStore, ShortDeadlineStore


class Away:
    """A store that fails every call with `error` while it is set, and records the calls."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner, self.url, self.error = inner, inner.url, None
        self.asked: list[str] = []

    error: LogError | None

    def close(self) -> None:
        """Keep the bucket open after a command."""

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            self.asked.append(verb)
            if self.error is not None:
                raise self.error.restated(self.error.attempt, **self.error.facts)
            return getattr(self.inner, verb)(*args, **more)

        return call


ERRORS = {
    "no way to it": Unavailable("the store cannot be reached"),
    "a wrong secret": AccessDenied("the store refuses the secret"),
    "no bucket": NotFound("there is no such bucket"),
}


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def home(tmp_path: Path, monkeypatch, waits: list[float]) -> Away:
    """A directory with a tiered topic whose records are on the disk, and in the bucket except for the newest."""
    away = Away(MemoryStore("memory://bucket"))

    def opened(url: str, options: object, *, policy: RetryPolicy | None = None, **more: object) -> ObjectStore:
        budget = policy.budget if policy is not None else RetryBudget()
        return RetryingStore(away, RetryPolicy(sleep=waits.append, budget=budget))  # type: ignore[arg-type]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(configured_store, "open_store", opened)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"line {at}\n" for at in range(5)))
    assert invoke(["-q", "init", "--remote", f"file://{tmp_path}/bucket"]) == 0
    own = ["-X", "remote.storage.enable=true", "-X", "local.retention.ms=1ms", "-X", "retention.ms=-1"]
    assert invoke(["-q", "topic", "create", "orders", "-p", "2", *own]) == 0
    assert invoke(["-q", "append", "orders/0", "lines"]) == 0
    away.asked.clear()
    return away


@pytest.mark.parametrize("why", sorted(ERRORS))
def test_consume_of_local_offsets_with_a_dead_store_does_not_wait(
    home: Away, capfd, waits: list[float], why: str
) -> None:
    home.error = ERRORS[why]
    for start, first in (("start", 0), ("2", 2), ("-3", 2), ("@0", 0), ("end", 5)):
        capfd.readouterr()
        assert invoke(["consume", "orders/0", "--from", start, "-o", "jsonl"]) == 0
        out, err = capfd.readouterr()
        offsets = [json.loads(line)["offset"] for line in out.splitlines()]
        assert offsets == list(range(first, 5))
        assert err.count("served without the remote tier") == 1
        assert home.error.attempt in err
    assert waits == []
    assert 0 < len(home.asked) <= 5 * 2, "each partition must be requested at most once"


@pytest.mark.parametrize("why", sorted(ERRORS))
def test_append_with_a_dead_store_is_acknowledged_without_a_wait(
    home: Away, capfd, waits: list[float], why: str
) -> None:
    home.error = ERRORS[why]
    capfd.readouterr()
    assert invoke(["append", "orders/0", "lines", "-o", "json"]) == 0
    out, err = capfd.readouterr()
    assert [(row["base_offset"], row["next_offset"]) for row in json.loads(out)["appended"]] == [(5, 10)]
    assert home.error.attempt in err
    assert "'tiered run' copies the records when the store replies" in err
    assert waits == []
    home.error = None
    assert invoke(["consume", "orders/0", "-o", "jsonl"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 10, "each record must be there once"


@pytest.mark.parametrize("why", sorted(ERRORS))
def test_append_to_an_empty_log_retries_the_read_of_its_end_offset(
    home: Away, capfd, waits: list[float], why: str
) -> None:
    """Only the remote tier knows the end offset of such a log, so the store is retried with the full patience."""
    home.error = ERRORS[why]
    assert invoke(["append", "orders/1", "lines"]) == (6 if why == "no way to it" else 1)
    assert bool(waits) == (why == "no way to it")
    home.error = None
    capfd.readouterr()
    assert invoke(["consume", "orders/1"]) == 0
    assert capfd.readouterr().out == ""


def test_append_with_remote_acks_waits_for_the_store(home: Away, waits: list[float]) -> None:
    home.error = ERRORS["no way to it"]
    assert invoke(["append", "orders/0", "lines", "--acks", "remote", "--timeout", "1ms"]) == 6
    assert waits != []


def test_consume_of_dropped_offsets_retries_the_store(home: Away, capfd, waits: list[float]) -> None:
    assert invoke(["-q", "run", "--once"]) == 0
    assert invoke(["-q", "append", "orders/0", "lines"]) == 0
    home.error = ERRORS["no way to it"]
    capfd.readouterr()
    assert invoke(["consume", "orders/0", "--from", "5", "-o", "jsonl"]) == 0, "these offsets are on the disk"
    assert [json.loads(line)["offset"] for line in capfd.readouterr().out.splitlines()] == list(range(5, 10))
    assert waits == []
    assert invoke(["dump", "orders/0@7"]) == 0, "this offset is on the disk"
    assert waits == []
    assert invoke(["consume", "orders/0", "--from", "0"]) == 6
    assert waits != []


# --- store ----------------------------------------------------------------------------------------------------------


def test_call_without_an_answer_stops_further_calls_until_the_deadline_ends() -> None:
    away, waits = Away(MemoryStore()), []
    policy = RetryPolicy(sleep=waits.append)
    store = ShortDeadlineStore(RetryingStore(away, policy), policy.budget)  # type: ignore[arg-type]
    away.error = ERRORS["no way to it"]
    with store.haste():
        for _ in range(3):
            with pytest.raises(Unavailable):
                store.get("a")
            with pytest.raises(Unavailable):
                list(store.list(""))
    assert away.asked == ["get"]
    assert waits == []
    with pytest.raises(Unavailable):
        store.get("a")
    assert len(away.asked) > 2, "after the short deadline the store must be retried again"
    assert waits != []


def test_hanging_call_is_abandoned_at_the_limit() -> None:
    from threading import Event

    class Hanging:
        url = "memory://b"

        def get(self, key: str) -> bytes:
            done.wait()
            return b""

    done = Event()
    store = ShortDeadlineStore(Hanging(), RetryBudget(), limit_s=0.01)  # type: ignore[arg-type]
    try:
        with store.haste(), pytest.raises(Unavailable, match="no reply before the deadline"):
            store.get("a")
    finally:
        done.set()


def test_store_that_answers_gets_every_call_under_a_short_deadline() -> None:
    inner = MemoryStore()
    store = ShortDeadlineStore(inner, RetryBudget())
    with store.haste():  # type: ignore[attr-defined]
        store.put_if_absent("a", b"1")
        assert (store.get("a"), [info.key for info in store.list("")]) == (b"1", ["a"])
        with pytest.raises(NotFound):
            store.get("b")
        assert store.get("a") == b"1", "an error of the store must count as an answer"


def test_calls_after_the_short_deadline_have_the_deadlines_of_the_inner_store_alone() -> None:
    threads: list[Thread] = []

    class Inner(MemoryStore):
        def upload(self, key: str, source: UploadSource) -> None:
            threads.append(current_thread())
            super().upload(key, source)

        def close(self) -> None:
            threads.append(current_thread())

    store = ShortDeadlineStore(Inner(), RetryBudget())
    store.upload("a", ranged_source(3, lambda start, length: b"123"[start : start + length]))
    store.close()
    assert threads == [current_thread()] * 2
    assert store.get("a") == b"123"


def test_manager_with_a_refusing_bucket_serves_the_disk_and_acquires_later() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 10)
    away = Away(world.store)
    away.error = ERRORS["a wrong secret"]
    from tiered.manager.manager import LogManager

    where = {"now_ms": NOW, "storage": world.disk, "store": away}
    with pytest.raises(AccessDenied):
        LogManager.open(world.config, **where)  # type: ignore[arg-type]
    with LogManager.open(world.config, may_be_refused=True, **where) as manager:  # type: ignore[arg-type]
        assert isinstance(manager.problems[NAME], AccessDenied)
        send(manager, 10, start=10)
        assert len(values(manager.reader())) == 20
        with pytest.raises(AccessDenied):
            manager.partitions.retry([NAME], now_ms=NOW)
        away.error = None
        manager.partitions.retry([NAME], now_ms=NOW)
        settle(manager)


def test_reader_with_a_dead_store_serves_local_records() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 10)
    down = SwitchableStore(world.store)
    with world.open(store=down, read_only=True) as manager:  # type: ignore[arg-type]
        reader = manager.reader()
        assert reader.offsets(NAME) == (0, 10)
        assert [each.offset for each in reader.records(NAME, 3)] == list(range(3, 10))
        assert reader.offset_for_timestamp(NAME, 0) == 0


def test_short_deadline_is_at_most_two_seconds() -> None:
    assert configured_store.HASTE_S <= 2.0


# --- commands that show figures -------------------------------------------------------------------------------------

LOOKS = [
    ("status", 6),
    ("status --section sync", 6),
    ("get-offsets orders", 6),
    ("plan", 6),
    ("topic describe orders", 6),
    ("cost show", 6),
    ("cost advise", 6),
    ("compaction status", 0),
    ("transactions list", 0),
    ("doctor", 10),
]


@pytest.mark.parametrize(("words", "code"), LOOKS, ids=lambda each: str(each))
def test_read_only_command_waits_once_for_a_dead_store_not_per_partition(
    home: Away, capfd, waits: list[float], words: str, code: int
) -> None:
    for topic in ("second", "third"):
        own = ["-X", "remote.storage.enable=true"]
        assert invoke(["-q", "topic", "create", topic, "-p", "20", *own]) == 0
    capfd.readouterr()
    home.error = ERRORS["no way to it"]
    assert invoke(words.split()) == code
    assert len(waits) <= 4, "all calls together must have at most four retries"
    assert home.error.attempt in "".join(capfd.readouterr())


def test_dead_store_costs_one_time_limit_and_later_calls_fail_at_once() -> None:
    away, clock = Away(MemoryStore()), [0.0]

    class Slow(Away):
        def __getattr__(self, verb: str) -> Callable[..., object]:
            clock[0] += 2.0
            return away.__getattr__(verb)

    away.error = ERRORS["no way to it"]
    store = BriefStore(Slow(away.inner), elapsed_s=lambda: clock[0])  # type: ignore[arg-type]
    for _ in range(50):
        with pytest.raises(Unavailable, match="the store cannot be reached"):
            store.get("a")
        with pytest.raises(Unavailable):
            list(store.list(""))
    assert (len(away.asked), store.is_away) == (3, True)


def test_store_that_has_answered_gets_the_time_of_a_full_call() -> None:
    away, clock = Away(MemoryStore()), [0.0]
    store = BriefStore(away, elapsed_s=lambda: clock[0])  # type: ignore[arg-type]
    away.error = ERRORS["a wrong secret"]
    with pytest.raises(AccessDenied):
        store.get("a")
    assert not store.is_away, "a refusal must count as an answer"
    with store._lock:
        store._vain_s = configured_store.ANSWERED_S - 1
    away.error = None
    assert list(store.list("")) == []


def test_hanging_store_gets_one_request_from_a_read_only_open() -> None:
    from threading import Event

    class Hanging:
        url, asked = "memory://b", 0

        def list(self, prefix: str, *, start_after: str = "") -> object:
            Hanging.asked += 1
            began.set()
            done.wait()
            return iter(())

        close = list

    began, done = Event(), Event()
    store = BriefStore(Hanging(), limit_s=0.01)  # type: ignore[arg-type]
    try:
        for _ in range(20):
            with pytest.raises(Unavailable, match="no reply before the deadline"):
                list(store.list(""))
        assert began.wait(60)
        assert Hanging.asked == 1
    finally:
        done.set()


def test_doctor_with_a_dead_store_skips_checks_that_need_another_client(home: Away, capfd, monkeypatch) -> None:
    from remote.store import unfinished_uploads

    def refuse(self: object) -> None:
        raise AssertionError("the check opened another client")

    monkeypatch.setattr(unfinished_uploads.UnfinishedUploads, "list", refuse)
    home.error = ERRORS["no way to it"]
    text = Path("tiered.toml").read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("url"))
    Path("tiered.toml").write_text(text.replace(line, 'url = "s3://bucket"'))
    assert invoke(["doctor"]) == 10
    assert "the store did not reply" in capfd.readouterr().out
