"""A pipeline whose tasks die during their first attempts, and whose driver is killed.

    python dying_pipeline_job.py URL STATE N MASTER NODE...

1. The first attempt of a node ends with its process after its second upload.
2. The first attempt of a partition ends after an effect on the bucket.
3. The driver is killed (SIGKILL) before it records its unit N (from 0). Run by tests.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulty_job import FaultyBucket

from local.storage import DiskStorage
from tiered.jobs import pipeline, pipeline_job
from tiered.jobs.pipeline import Fleet, work_node
from tiered.jobs.pipeline_job import PipelineState
from tiered.spark.jobs.runner import SparkRunner
from tiered.spark.session import launched_session

NOW = 1_800_000_000_000


def dying_work(fleet, directory, *, now_ms):
    from pyspark import TaskContext

    import tiered.maintenance.upload_and_commit

    if TaskContext.get().attemptNumber() == 0:
        real, copied = tiered.maintenance.upload_and_commit.copy_segment, []

        def cut(*words, **more):
            row = real(*words, **more)
            copied.append(row)
            if len(copied) == 2:
                os._exit(1)
            return row

        tiered.maintenance.upload_and_commit.copy_segment = cut
    return work_node(fleet, directory, now_ms=now_ms)


@dataclass(frozen=True)
class Deaths:
    """End the first attempt of a task after it created its first manifest, between two effects of a partition."""

    def __call__(self, number, verb, is_after):
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and is_after and verb in ("put_if_absent", "upload"):
            os._exit(1)


class DyingState(PipelineState):
    notes_left = 0

    def note(self, stage, unit):
        if self.notes_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.notes_left -= 1
        super().note(stage, unit)


def main():
    url, path, notes, master, *nodes = sys.argv[1:]
    pipeline.work_node = dying_work
    state = DyingState(DiskStorage(), path, url, "nightly", now_ms=NOW)
    state.notes_left = int(notes)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    conf = {"spark.executor.memory": "600m", "spark.executorEnv.PYTHONPATH": path}
    spark = launched_session("dying", master, conf)
    fleet = Fleet(bucket=FaultyBucket(url=url, strikes=Deaths()), nodes=tuple(nodes))
    pipeline_job.run_pipeline(
        fleet,
        SparkRunner(spark, job_id="nightly", wave_tasks=2),
        job_id=state.run_id,
        now_ms=lambda: NOW,
        state=state,
    )


if __name__ == "__main__":
    main()
