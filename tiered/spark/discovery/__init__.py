"""The package that is installed as ``pyspark_tiered``, where PySpark finds data sources by itself.

PySpark 4 imports every top-level ``pyspark_*`` module it finds in its path and takes `DefaultSource` from it. With the
package installed from a wheel, ``spark.read.format("tiered")`` therefore needs no call. PySpark searches directories
only: it does not find an editable install, which needs `tiered.spark.session.register`. Both together do no harm.
"""

from __future__ import annotations

from tiered.spark.source.source import TieredSource as DefaultSource

__all__ = ["DefaultSource"]
