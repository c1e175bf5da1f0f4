"""Export records as Parquet files by threads of this process: the files of `tiered.tables.exporting`, without Java.

`ThreadWaves` returns a wave only if all its tasks succeeded, as Spark does. So the record of a wave names all its
files. After an error or a kill the next run deletes the other files of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from local.errors import InvalidRequest
from remote.keys import new_ulid
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import Done, Here
from tiered.spark.source.planning import wall_ms
from tiered.tables.exporting import ExportResult, export_by
from tiered.tables.scan import default_threads

TASKS_PER_THREAD = 4  # of a wave: a stop and the record of a wave wait for so many tasks
W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ThreadWaves(Here):
    """Does pieces in `threads` threads, in waves of `tasks_of_a_wave` pieces. It stops between two waves."""

    is_parallel: bool = field(default=True, init=False)

    @property
    def tasks_of_a_wave(self) -> int:
        return self.threads * TASKS_PER_THREAD

    def run(self, description: str, work: Iterable[W], do: Callable[[W], R], total: int | None = None) -> Done[W, R]:
        """Yield one list for each wave. Raises the error of its first failed piece, after its other pieces ended."""
        remaining = iter(work)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="export") as pool:
            while not self.should_stop() and (wave := list(islice(remaining, self.tasks_of_a_wave))):
                yield list(zip(wave, pool.map(do, wave), strict=True))


def export(
    url: str,
    to: str,
    *,
    to_options: Mapping[str, object] | None = None,
    job_id: str | None = None,
    codec: str = "zstd",
    work_directory: str | None = None,
    threads: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda done_bytes, all_bytes: None,
    **options: str,
) -> ExportResult:
    """Export the records that `options` select, as `tiered.spark.export` does, by `threads` of this process.

    `threads` None: one for each CPU, at most 8. A thread holds about 64 MiB (the sizes of its
    windows and steps), and up to 32 MiB for each day of its records.
    Raises as `tiered.spark.export`, Unavailable if the store does not answer: run it again with the job id then.
    """
    threads = default_threads() if threads is None else threads
    if threads < 1:
        raise InvalidRequest("cannot export, threads must be above zero", threads=threads)
    waves = ThreadWaves(should_stop, threads=threads)
    target = Bucket(url=to, options=to_options or {}, work_directory=work_directory)
    job_id = job_id or new_ulid(wall_ms())
    return export_by(waves, waves.tasks_of_a_wave, url, target, job_id, codec=codec, progress=progress, **options)
