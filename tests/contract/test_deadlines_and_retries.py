"""The retry layer and the request counts: which errors are retried, how often, and what is logged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

from local.errors import AccessDenied, AlreadyExists, Corrupt, InvalidRequest, NotFound, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store import LIST_PAGE, ObjectInfo, ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import RetryBudget, RetryingStore, RetryPolicy
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts

ONCE = RetryPolicy(attempts_max=1)
LARGE = bytes(2 * PART_BYTES + PART_BYTES // 2)


def source_of(body):
    return ranged_source(len(body), lambda start, length: memoryview(body)[start : start + length])


class TestRetryPolicy:
    def test_only_unavailable_is_retried(self):
        for error in (NotFound("x"), AccessDenied("x"), AlreadyExists("x"), Corrupt("x"), InvalidRequest("x")):
            calls = []

            def fail(calls=calls, error=error):
                calls.append(1)
                raise error

            with pytest.raises(type(error)):
                RetryPolicy(sleep=lambda _: None).call(fail)
            assert len(calls) == 1

    def test_nested_retry_layers_do_not_multiply_attempts(self):
        calls = []

        def fail():
            calls.append(1)
            raise Unavailable("doing a thing", key="k")

        policy = RetryPolicy(attempts_max=4, sleep=lambda _: None)
        with pytest.raises(Unavailable, match="doing a thing: key=k attempts=4"):
            policy.call(lambda: policy.call(fail))
        assert len(calls) == 4

    def test_the_duration_of_the_first_attempt_counts_towards_the_deadline(self, monkeypatch):
        now, calls = [100.0], []
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        policy = RetryPolicy(attempts_max=1000, deadline_s=30.0, sleep=lambda _: None)

        def hang():
            calls.append(1)
            now[0] += 20.0
            raise Unavailable("doing a thing")

        with pytest.raises(Unavailable, match="attempts=2"):
            policy.call(hang)
        assert len(calls) == 2

    def test_a_call_without_an_error_does_not_import_tenacity(self):
        code = "import sys; from remote.store.middleware.deadlines_and_retries import RetryPolicy; "
        code += "RetryPolicy().call(list); assert 'tenacity' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_no_attempt_begins_after_the_deadline(self):
        policy = RetryPolicy(attempts_max=1000, deadline_s=0.0, sleep=lambda _: None)
        calls = []

        def fail():
            calls.append(1)
            raise Unavailable("doing a thing")

        with pytest.raises(Unavailable):
            policy.call(fail)
        assert len(calls) == 1

    def test_a_listing_that_fails_continues_after_its_last_key(self):
        memory = MemoryStore()
        for number in range(10):
            memory.put(f"k{number}", b"x")

        class Breaking(MemoryStore):
            breaks = 3

            def list(self, prefix, *, start_after=""):
                for number, info in enumerate(memory.list(prefix, start_after=start_after)):
                    if number == 2 and self.breaks:
                        self.breaks -= 1
                        raise Unavailable("cannot list objects")
                    yield info

        store = RetryingStore(Breaking(), RetryPolicy(sleep=lambda _: None))
        assert [info.key for info in store.list("")] == [f"k{number}" for number in range(10)]

    @pytest.mark.parametrize("whole_pages", [0, 1])
    def test_a_listing_is_retried_as_often_as_any_other_call(self, whole_pages):
        tries = []

        class Down(MemoryStore):
            def list(self, prefix, *, start_after=""):
                if not start_after:
                    yield from [ObjectInfo(key=f"k{at:04}", size_bytes=1) for at in range(whole_pages * LIST_PAGE)]
                tries.append(start_after)
                raise Unavailable("cannot list objects")

        store = RetryingStore(Down(), RetryPolicy(attempts_max=3, sleep=lambda _: None))
        found = []
        with pytest.raises(Unavailable, match="attempts=3"):
            found.extend(info.key for info in store.list(""))
        assert len(tries) == 3
        assert len(set(tries)) == (2 if whole_pages else 1)

    def test_a_wait_for_the_store_is_logged_once_per_call_with_its_cause(self, caplog):
        policy = RetryPolicy(attempts_max=5, warn_after_s=0.0, sleep=lambda _: None)

        class Down(MemoryStore):
            def get(self, key):
                raise Unavailable("cannot read an object, the store is busy", store="memory://x", cause="SlowDown")

        store = RetryingStore(Down(), policy)
        for _ in range(2):
            with pytest.raises(Unavailable):
                store.get("a/b")
        told = [record.getMessage() for record in caplog.records]
        assert told == ["retrying a call to the store: verb=get key=a/b attempts=1 cause=SlowDown"] * 2

    def test_a_call_that_succeeds_soon_logs_nothing(self, caplog):
        failures = [Unavailable("x"), Unavailable("x")]

        def attempt():
            if failures:
                raise failures.pop()
            return 1

        assert RetryPolicy(sleep=lambda _: None).call(attempt, verb="get", key="a") == 1
        assert caplog.records == []


class TestMeteredCounts:
    def test_requests_and_bytes_are_counted_by_kind(self):
        store = MeteredStore(MemoryStore())
        store.put("a", b"12345")
        store.put_if_absent("b", b"123")
        store.upload("big", source_of(LARGE))  # begin, three parts, completion
        before = store.counts()
        assert before == RequestCounts(puts=7, posts=2, bytes_in=8 + len(LARGE))
        store.get("a")
        store.get_ranges("b", [(0, 1), (1, 2)])
        store.head("a")
        list(store.list(""))
        store.delete(["a", "b"])
        assert store.counts() - before == RequestCounts(gets=4, heads=1, lists=1, deletes=1, bytes_out=8)


class TestRetryBudget:
    def failing(self, calls):
        def fail():
            calls.append(1)
            raise Unavailable("doing a thing")

        return fail

    def test_with_a_spent_budget_every_call_makes_one_attempt(self):
        policy = RetryPolicy(attempts_max=4, sleep=lambda _: None, budget=RetryBudget(5))
        tries = []
        for _ in range(10):
            calls = []
            with pytest.raises(Unavailable):
                policy.call(self.failing(calls))
            tries.append(len(calls))
        assert tries == [4, 3, 1, 1, 1, 1, 1, 1, 1, 1]

    def test_successful_calls_earn_retries_up_to_the_capacity(self):
        policy = RetryPolicy(attempts_max=9, sleep=lambda _: None, budget=RetryBudget(2, earned=0.5))
        for successes, tries in ((0, 3), (0, 1), (1, 1), (1, 2), (100, 3)):
            for _ in range(successes):
                policy.call(lambda: None)
            calls = []
            with pytest.raises(Unavailable):
                policy.call(self.failing(calls))
            assert len(calls) == tries

    def test_a_call_that_stops_for_another_reason_spends_no_budget(self):
        budget = RetryBudget(1)
        for _ in range(5):
            with pytest.raises(Unavailable):
                RetryPolicy(attempts_max=1, budget=budget).call(self.failing([]))
            with pytest.raises(NotFound):
                RetryPolicy(budget=budget, sleep=lambda _: None).call(self.missing)
        assert budget.spend()

    def missing(self):
        raise NotFound("x")


def test_deletes_are_sent_in_pages_and_only_a_failed_page_is_retried() -> None:
    sent: list[int] = []

    class Flaky(MemoryStore):
        def delete(self, keys: Iterable[str]) -> None:
            wanted = tuple(keys)
            sent.append(len(wanted))
            if len(sent) == 2:
                raise Unavailable("for the moment")
            super().delete(wanted)

    store = Flaky()
    names = [f"k{number}" for number in range(2500)]
    for name in names:
        store.put(name, b"x")
    RetryingStore(store, RetryPolicy(sleep=lambda seconds: None)).delete(names)
    assert sent == [1000, 1000, 1000, 500]
    assert list(store.list("")) == []
    RetryingStore(store).delete([])
    assert len(sent) == 4
