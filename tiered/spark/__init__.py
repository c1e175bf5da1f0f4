"""Spark over the bucket. The import is light: each name is imported on first use, and pyspark by its first call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tiered.spark.session import register, spark_session

if TYPE_CHECKING:
    from tiered.spark.jobs.compaction import compact
    from tiered.spark.jobs.copying import copy
    from tiered.spark.jobs.exporting import export
    from tiered.spark.jobs.rewriting import rewrite
    from tiered.spark.jobs.scrubbing import scrub
    from tiered.spark.source.source import read_arrow

__all__ = ["compact", "copy", "export", "read_arrow", "register", "rewrite", "scrub", "spark_session"]
_LATER = {  # name: module, imported on first use
    "compact": "jobs.compaction",
    "copy": "jobs.copying",
    "export": "jobs.exporting",
    "read_arrow": "source.source",
    "rewrite": "jobs.rewriting",
    "scrub": "jobs.scrubbing",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module(f"tiered.spark.{_LATER[name]}"), name)
    raise AttributeError(name)
