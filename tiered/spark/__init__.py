"""Spark over the bucket. Each name is imported on first use, and pyspark by its first call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tiered.spark.session import register, spark_session

if TYPE_CHECKING:
    from tiered.spark.jobs.runner import SparkRunner, compact, copy, delete_garbage, list_garbage, rewrite, scrub
    from tiered.spark.source.source import read_arrow
    from tiered.tables.exporting import export

__all__ = [
    "SparkRunner", "compact", "copy", "delete_garbage", "export", "list_garbage", "read_arrow", "register", "rewrite",
    "scrub", "spark_session",
]  # fmt: skip
# The other names are in `tiered.spark.jobs.runner`.
_MODULES = {"export": "tiered.tables.exporting", "read_arrow": "tiered.spark.source.source"}


def __getattr__(name: str) -> object:  # a module is imported on first use
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module(_MODULES.get(name, "tiered.spark.jobs.runner")), name)
