"""A recode in its own driver, whose tasks die at their first attempts, and which is killed between two effects.

    python faulty_upkeep_job.py URL KEYS N MASTER

Like `faulty_job.py`: the first attempt of a task ends after its first upload, the driver before its effect N. Run by
tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulty_job import FaultyBucket, Strikes

from remote.manifest.catalog import list_partitions
from remote.store.open_store import open_store
from tiered.jobs.rewriting import plan_recode
from tiered.spark.jobs.runner import rewrite
from tiered.spark.session import launched_session

NOW = 1_800_000_000_000


def main() -> None:
    url, key_ring, effect, master = sys.argv[1:]
    store = open_store(url)
    plans = [plan_recode(store, name, now_ms=NOW, codec="zstd") for name in list_partitions(store)]
    store.close()
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    conf = {"spark.executor.memory": "600m", "spark.executorEnv.PYTHONPATH": path}
    spark = launched_session("faulty", master, conf)
    bucket = FaultyBucket(url=url, key_ring=key_ring, strikes=Strikes(int(effect)))
    rewrite(spark, bucket, plans, wave_tasks=2, task_bytes=1, now_ms=lambda: NOW, job_id="nightly")


if __name__ == "__main__":
    main()
