"""The package that is installed as ``pyspark_tiered``, where PySpark finds data sources by itself.

PySpark 4 takes `DefaultSource` from every ``pyspark_*`` module in its path, but does not find an editable install.
"""

from __future__ import annotations

from tiered.spark.source.source import TieredSource as DefaultSource

__all__ = ["DefaultSource"]
