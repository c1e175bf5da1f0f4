"""Load every log at the start: directories in parallel, several threads each, with progress.

Recovery reads and checks a whole log. Disks do not wait for each other, and the compiled kernels release the
interpreter lock while they check. So `num.recovery.threads.per.data.dir` threads help even on one disk. An error of one
log is its entry in the result; the other logs are still loaded.
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
    """Progress of one directory; reported at the start (`done` 0) and after every log."""

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
    """Open all logs of `jobs` (by directory): each a partition or its error, in the order of `jobs`.

    `open_log` is called from many threads, `progress` from the calling thread. An exception other than LogError ends
    the call: jobs not yet started are cancelled, running jobs are waited for.
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
    """The results in order of completion. Uses no thread pool for one directory and one thread."""
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
