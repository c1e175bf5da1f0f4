"""A Spark session for this machine with measured settings and the registered data source.

`spark_session` is for scripts, the demo and tests; an existing session needs only `register`. A cluster needs only the
installed package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from local.errors import InvalidRequest
from tiered.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Errors only on stderr. Pass this alone as spark__driver__extraJavaOptions for long jobs, which gain from the C2
# compiler and a parallel collector; C1 alone and the serial collector halve the time of short ones.
QUIET_JAVA = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"{_SHORT_JOBS} {QUIET_JAVA}",
    "spark.driver.host": "127.0.0.1",  # no DNS look-up, no warning about the loopback
    "spark.driver.memory": "1g",
    "spark.python.worker.faulthandler.enabled": "true",  # the stack of a crashed worker, at no measurable cost
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def spark_session(app_name: str, master: str = "local[2]", **conf: str) -> SparkSession:
    """A running session with the source ``tiered`` registered; the caller stops it.

    `conf` overrides `SETTINGS`; dots in names are written as double underscores
    (``spark__sql__shuffle__partitions="8"``). A running session is returned unchanged, apart from settings that Spark
    can change at run time. Raises InvalidRequest if pyspark or a Java is missing.
    """
    ensure_pyspark()
    ensure_java()
    # Spark would run the first python3 on PATH in its workers and miss this environment's packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (SETTINGS | {name.replace("__", "."): value for name, value in conf.items()}).items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Register the sources ``tiered`` and ``tiered-segments`` in the session, which is returned.

    May repeat. Spark runs a source in the interpreter that PYSPARK_PYTHON names, else in the first ``python3`` on PATH.
    With a master on this machine (``local[...]``) and without that variable it is the caller's interpreter. Raises
    InvalidRequest if the interpreter lacks the package, with both names.
    """
    ensure_pyspark()
    from tiered.spark.source.segments_source import SegmentsSource
    from tiered.spark.source.source import TieredSource

    with _own_interpreter(spark):
        spark.dataSource.register(TieredSource)
        spark.dataSource.register(SegmentsSource)
    return spark


@contextmanager
def _own_interpreter(spark: SparkSession) -> Iterator[None]:
    """Inside the block, registered sources run in an interpreter that has the package."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none: its server decides
    chosen = getattr(context, "pythonExec", None)
    if context is None or chosen is None:
        yield
        return
    if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = sys.executable
        try:
            yield
        finally:
            context.pythonExec = chosen
        return
    check_interpreter(chosen)
    yield


def check_interpreter(program: str) -> None:
    """Raises InvalidRequest if this machine's `program` is no Python that can import the source."""
    found = shutil.which(program)
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    fix = f"set PYSPARK_PYTHON={sys.executable} before the session is created, or install the package there"
    facts = {"interpreter": found or program, "registered_by": sys.executable, "fix": fix}
    if found is None:
        raise InvalidRequest(
            "cannot register the sources with Spark, the interpreter of its workers does not exist", **facts
        )
    words = [found, "-c", "import tiered.spark.source.source"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - Spark runs it as well
    if done.returncode != 0:
        missing = (done.stderr.strip().splitlines() or ["unknown"])[-1]
        attempt = "cannot register the sources with Spark, the interpreter of its workers lacks the package"
        raise InvalidRequest(attempt, missing=missing, **facts)


def ensure_pyspark() -> None:
    """Raises InvalidRequest, with the extra to install, unless pyspark 4 and pyarrow can be imported."""
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import datasource  # noqa: F401
    except ImportError as error:
        fix = "pip install 'tiered[spark]'"
        raise InvalidRequest("cannot start Spark, a package is missing", missing=error.name, fix=fix) from error
