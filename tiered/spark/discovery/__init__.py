"""Installed as the top-level package ``pyspark_tiered``, which is where PySpark looks for sources by itself.

PySpark 4 imports every top-level ``pyspark_*`` module it finds in its path and takes `DefaultSource` from it, so with
the package installed from a wheel ``spark.read.format("tiered")`` needs no call. It looks at directories only: an
editable install hides this from it, and `tiered.spark.session.register` is the way there. Both together do no harm.
"""

from __future__ import annotations

from tiered.spark.source.source import TieredSource as DefaultSource

__all__ = ["DefaultSource"]
