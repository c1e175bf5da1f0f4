"""Spark over the bucket. Importing this costs nothing; pyspark is looked for when something is called."""

from __future__ import annotations

from tiered.spark.arrow import read_arrow
from tiered.spark.session import register, spark_session

__all__ = ["read_arrow", "register", "spark_session"]
