"""A user script with the installed package, for ``spark-submit``. It uses no part of a checkout.

``spark-submit installed_job.py URL`` reads by the source name that PySpark discovers, compacts, and prints JSON: the
record counts before and after, and the origin of the package in driver and workers.
"""

import json
import os
import sys

from pyspark.sql import SparkSession


def whereabouts(batches):
    """(directory, interpreter, package, kernels) of a worker."""
    import pyarrow as pa

    import tiered
    from local.kernels import implementation

    for _ in batches:
        row = [os.getcwd(), sys.executable, os.path.dirname(tiered.__file__), implementation()]
        yield pa.RecordBatch.from_arrays(
            [pa.array([each]) for each in row], names=["place", "python", "package", "kernels"]
        )


def main():
    import tiered
    from tiered.spark import compact

    url = sys.argv[1]
    spark = SparkSession.builder.appName("installed").getOrCreate()
    count = lambda: spark.read.format("tiered").option("subscribe", "t").load(url).count()  # noqa: E731
    before = count()
    settings = {"cleanup.policy": "compact", "segment.bytes": "4096"}
    (outcome,) = compact(spark, url, ["t"], settings=settings, job_id="submitted")
    schema = "place string, python string, package string, kernels string"
    rows = spark.range(0, 4, 1, 4).mapInArrow(whereabouts, schema).collect()
    told = {
        "driver": os.path.dirname(tiered.__file__),
        "master": spark.sparkContext.master,
        "workers": [row.asDict() for row in rows],
        "before": before,
        "compacted": outcome.records_after,
        "after": count(),
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
