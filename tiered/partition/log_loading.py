"""Loading every log at the start: the directories side by side, each with a few threads, and telling how far it is.

A log that has to be recovered is read whole and checked. Disks do not wait for each other, and the compiled kernels
let go of the interpreter while they check, so `num.recovery.threads.per.data.dir` threads help even on one disk.
What is wrong with one log is its own: it stands in the result, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from tiered.partition.partition import Partition

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far one directory is; told when it begins (`done` 0) and after every log."""

    directory: str
    done: int
    total: int
    recovered_segments: int


OnProgress = Callable[[LoadProgress], None]
Loaded = dict[TopicPartition, "Partition | LogError"]


def load_logs(
    jobs: Mapping[str, Sequence[TopicPartition]],
    open_log: Callable[[TopicPartition], Partition],
    *,
    threads_per_directory: int,
    progress: OnProgress = lambda told: None,
) -> Loaded:
    """Open all logs of `jobs` (by directory); each as a partition or what is wrong with it, in the order of `jobs`.

    `open_log` is called from many threads, `progress` from the calling one. Anything but a LogError ends it: what has
    not begun is given up, what has is waited for.
    """
    state = {
        root: LoadProgress(directory=root, done=0, total=len(names), recovered_segments=0)
        for root, names in jobs.items()
    }
    for told in state.values():
        progress(told)
    found: Loaded = {}
    for root, name, result in _results(jobs, open_log, threads_per_directory):
        found[name] = result
        recovered = 0 if isinstance(result, LogError) else result.log.recovered_segments
        before = state[root]
        state[root] = LoadProgress(
            directory=root,
            done=before.done + 1,
            total=before.total,
            recovered_segments=before.recovered_segments + recovered,
        )
        progress(state[root])
    return {name: found[name] for names in jobs.values() for name in names}


def _results(
    jobs: Mapping[str, Sequence[TopicPartition]], open_log: Callable[[TopicPartition], Partition], threads: int
) -> Iterator[tuple[str, TopicPartition, Partition | LogError]]:
    """As they come. Without threads where one after the other is all that is asked for."""
    if threads == 1 and len(jobs) == 1:
        for root, names in jobs.items():
            for name in names:
                yield root, name, _attempt(open_log, name)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ExitStack() as pools:
        waiting: dict[Future[Partition | LogError], tuple[str, TopicPartition]] = {}
        try:
            for root, names in jobs.items():
                pool = pools.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="load"))
                waiting |= {pool.submit(_attempt, open_log, name): (root, name) for name in names}
            for done in as_completed(waiting):
                yield (*waiting[done], done.result())
        finally:
            for each in waiting:
                each.cancel()


def _attempt(open_log: Callable[[TopicPartition], Partition], name: TopicPartition) -> Partition | LogError:
    try:
        return open_log(name)
    except LogError as error:
        return error
