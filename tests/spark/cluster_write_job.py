"""Ingest and then compaction on a cluster of two executors, each with its own JVM. Prints the results as JSON.

python cluster_write_job.py <url>
"""

from __future__ import annotations

import json
import sys

from tiered.spark import compact, spark_session

OPTIONS = {"topic": "t", "createPartitions": "2", "cleanup.policy": "compact", "segment.bytes": "8192", "jobId": "in"}


def main(url):
    spark = spark_session("cluster", master="local-cluster[2,1,700]", spark__executor__memory="700m")
    try:
        frame = spark.range(0, 2000, 1, 4).selectExpr(
            "cast(id as string) as value", "cast(id % 100 as string) as key", "cast(id % 2 as int) as partition"
        )
        frame.write.format("tiered").mode("append").options(**OPTIONS).save(url)
        outcomes = compact(spark, url, ["t"], group_bytes=10_000, job_id="nightly")
        found = {"before": sum(each.records_before for each in outcomes)}
        found["after"] = sum(each.records_after for each in outcomes)
        # the driver counts as one
        found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
