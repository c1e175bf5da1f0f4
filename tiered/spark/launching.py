"""A session for one command, on whatever master it is asked to run: this machine, a cluster, or ``spark-submit``'s.

| started | master | Python of the workers |
|---|---|---|
| ``tiered ... --spark local[*]`` | as given | this interpreter |
| ``tiered ... --spark spark://...`` | as given | `PYSPARK_PYTHON`, ``spark.pyspark.python``, or the path of this one |
| ``spark-submit ... submit.py ...`` | ``spark-submit``'s | ``spark-submit``'s: ``spark.pyspark.python``, an archive |

Settings that were measured for one machine (`tiered.spark.session.SETTINGS`: loopback, no UI, one GiB) are for masters
on this machine alone; on a cluster Spark's own hold, and those of its operator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from local.errors import InvalidRequest
from tiered.spark.java import ensure_java
from tiered.spark.session import SETTINGS, ensure_pyspark, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
_ANYWHERE = {
    "spark.python.worker.faulthandler.enabled": SETTINGS["spark.python.worker.faulthandler.enabled"],
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",  # commands tell their progress themselves
}
_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")


def is_on_this_machine(master: str) -> bool:
    """``local...`` and ``local-cluster[...]``."""
    return master.startswith("local")


def settings_for(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """What a session is built with; `conf` outweighs all. Without a master, ``spark-submit``'s settings stand."""
    if master is None:
        return {**_ANYWHERE, **conf}
    if is_on_this_machine(master):
        return {**SETTINGS, "spark.master": master, **conf}
    return {**_ANYWHERE, "spark.master": master, **conf}


def launched_session(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A running session with our sources registered; the caller stops it. `master` None: `spark-submit`'s where that
    started this process, else `DEFAULT_MASTER`.

    Raises InvalidRequest when pyspark or a Java is missing, or when a session with another master runs already.
    """
    ensure_pyspark()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        ensure_java()
        master = master or DEFAULT_MASTER
    elif master is not None:
        raise InvalidRequest("starting Spark, spark-submit has the master", asked=master, fix="spark-submit --master")
    settings = settings_for(master, conf or {})
    _choose_python(master, settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _choose_python(master: str | None, settings: Mapping[str, str]) -> None:
    """Spark would run the first python3 on PATH in its workers, and miss this environment's packages."""
    if master is None:
        return  # spark-submit has said it, or the cluster's default is meant
    asked = next((settings[name] for name in _PYTHONS if name in settings), None)
    if is_on_this_machine(master):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = asked or sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif asked is not None:
        os.environ["PYSPARK_PYTHON"] = asked
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
