"""Spark over the bucket. The import is light: pyspark is imported by the first call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tiered.spark.session import register, spark_session
from tiered.spark.source.arrow import read_arrow

if TYPE_CHECKING:
    from tiered.spark.jobs.compaction import compact
    from tiered.spark.jobs.copying import copy
    from tiered.spark.jobs.exporting import export
    from tiered.spark.jobs.rewriting import rewrite
    from tiered.spark.jobs.scrubbing import scrub

__all__ = ["compact", "copy", "export", "read_arrow", "register", "rewrite", "scrub", "spark_session"]
_LATER = {  # name: module, imported on first use
    "compact": "compaction",
    "copy": "copying",
    "export": "exporting",
    "rewrite": "rewriting",
    "scrub": "scrubbing",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module(f"tiered.spark.jobs.{_LATER[name]}"), name)
    raise AttributeError(name)
