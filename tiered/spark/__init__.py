"""Spark over the bucket. Importing this costs nothing; pyspark is looked for when something is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiered.spark.arrow import read_arrow
from tiered.spark.session import register, spark_session

if TYPE_CHECKING:
    from tiered.spark.compaction import compact

__all__ = ["compact", "read_arrow", "register", "spark_session"]


def __getattr__(name: str) -> object:
    if name == "compact":
        from tiered.spark.compaction import compact

        return compact
    raise AttributeError(name)
