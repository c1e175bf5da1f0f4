"""The executor of this process, and a job's units in it: order, batches, errors, stops."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from local.errors import Corrupt, LogError, Unavailable
from remote.manifest.catalog import RemotePartitionName
from tiered.jobs.runner import Failures, Here, or_error, packed, run_job

NAMES = [RemotePartitionName("t", "A" * 22, number) for number in range(2)]


def test_pieces_are_packed_in_order_up_to_the_size_limit():
    assert packed([5, 5, 1, 20, 1, 1], lambda size: size, 10) == [(5, 5), (1,), (20,), (1, 1)]
    assert packed([], lambda size: size, 10) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_executor_returns_each_piece_with_its_result_in_order(threads: int) -> None:
    lists = Here(threads=threads).run("doubling", range(7), lambda n: 2 * n)
    assert [pair for pairs in lists for pair in pairs] == [(n, 2 * n) for n in range(7)]


def test_executor_runs_as_many_pieces_at_a_time_as_it_has_threads() -> None:
    together = threading.Barrier(3, timeout=30)
    lists = Here(threads=3).run("waiting", range(3), lambda n: together.wait() >= 0)
    assert list(lists) == [[(n, True)] for n in range(3)]


def test_stopped_executor_reads_no_further_piece() -> None:
    begun: list[int] = []
    pieces = iter(range(9))
    lists = Here(lambda: len(begun) == 2).run("adding", pieces, begun.append)
    assert list(lists) == [[(0, None)], [(1, None)]]
    assert next(pieces) == 2


@pytest.mark.parametrize("threads", [1, 4])
def test_executor_yields_the_finished_pieces_before_an_error(threads: int) -> None:
    def work(number: int) -> int:
        if number == 2:
            raise Unavailable("away")
        return number

    found = []
    with pytest.raises(Unavailable):
        found.extend(Here(threads=threads).run("failing", range(9), work))
    assert found == [[(0, 0)], [(1, 1)]]


@dataclass(frozen=True)
class Unit:
    number: int
    work: str


@dataclass
class Recorded:
    """A job of two plans. The unit ``damaged`` fails, and ends its plan; at the unit ``away`` the store is away."""

    description = "recording"
    batch_size = 2
    given: list[Unit]
    commits: list[list[str]] = field(default_factory=list)
    failures: Failures = field(default_factory=lambda: Failures(NAMES))

    def begin(self, opened: ExitStack) -> None:
        opened.callback(self.commits.append, ["closed"])

    def units(self) -> list[Unit]:
        return self.given

    def size_of(self, unit: Unit) -> int:
        return len(unit.work)

    def is_wanted(self, unit: Unit) -> bool:
        return unit.number not in self.failures.first

    def worker(self):
        def attempt(unit: Unit) -> str:
            if unit.work == "damaged":
                raise Corrupt("damaged")
            if unit.work == "away":
                raise Unavailable("away")
            return unit.work.upper()

        return lambda units: [or_error(lambda unit=unit: attempt(unit)) for unit in units]

    def commit(self, results) -> None:
        self.commits.append([str(result) for _, result in results if not isinstance(result, LogError)])

    def outcomes(self) -> list[int]:
        return [len(self.commits)]


def test_job_commits_batches_skips_unwanted_units_and_raises_the_first_error_at_the_end() -> None:
    works = [(0, "a"), (0, "damaged"), (0, "skipped"), (1, "bb"), (1, "ccc")]
    errors: dict[int, LogError] = {}
    sizes: list[int] = []
    job = Recorded([Unit(*each) for each in works])
    assert run_job(job, Here(), progress=sizes.append, errors=errors) == [2]
    assert job.commits == [["A"], ["BB", "CCC"], ["closed"]]
    assert (list(errors), sizes) == ([0], [1, 2, 3])
    with pytest.raises(Corrupt):
        run_job(Recorded([Unit(*each) for each in works]), Here())


def test_job_commits_the_finished_units_before_it_raises_unavailable() -> None:
    job = Recorded([Unit(0, work) for work in ("a", "b", "c", "away", "d")])
    with pytest.raises(Unavailable):
        run_job(job, Here())
    assert job.commits == [["A", "B"], ["C"], ["closed"]]


def test_job_in_one_process_reads_a_unit_after_the_commit_of_the_one_before() -> None:
    job = Recorded([])
    job.batch_size = 1
    job.units = lambda: (Unit(0, str(len(job.commits))) for _ in range(3))  # type: ignore[method-assign]
    run_job(job, Here())
    assert job.commits == [["0"], ["1"], ["2"], ["closed"]]


@pytest.mark.parametrize(
    ("works", "logged"),
    [
        ([(0, "damaged"), (1, "bb")], []),
        ([(0, "damaged"), (1, "damaged")], ["work failed: partition=t/1 error=damaged"]),
    ],
)
def test_job_logs_only_the_errors_that_it_neither_raises_nor_returns(works, logged, caplog) -> None:
    units = [Unit(*each) for each in works]
    run_job(Recorded(units), Here(), errors={})
    assert caplog.messages == []
    with pytest.raises(Corrupt):
        run_job(Recorded(units), Here())
    assert caplog.messages == logged
