"""A Spark session for one command, on a given master: this machine, a cluster, or ``spark-submit``'s.

| started | master | Python of the workers |
|---|---|---|
| ``tiered ... --spark local[*]`` | as given | this interpreter |
| ``tiered ... --spark spark://...`` | as given | `PYSPARK_PYTHON`, ``spark.pyspark.python``, or the path of this one |
| ``spark-submit ... submit.py ...`` | ``spark-submit``'s | ``spark-submit``'s: ``spark.pyspark.python``, an archive |

The settings measured for one machine (`tiered.spark.session.SETTINGS`: loopback, no UI, one GiB) apply only to masters
on this machine. On a cluster Spark's own settings and its operator's apply.
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
    "spark.ui.showConsoleProgress": "false",  # commands report their progress themselves
}
_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")


def is_on_this_machine(master: str) -> bool:
    """Whether the master is ``local...`` or ``local-cluster[...]``."""
    return master.startswith("local")


def settings_for(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session; `conf` overrides all. Without a master ``spark-submit``'s settings apply."""
    if master is None:
        return {**_ANYWHERE, **conf}
    if is_on_this_machine(master):
        return {**SETTINGS, "spark.master": master, **conf}
    return {**_ANYWHERE, "spark.master": master, **conf}


def launched_session(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A running session with our sources registered; the caller stops it.

    `master` None means `spark-submit`'s if it started this process, else `DEFAULT_MASTER`. Raises InvalidRequest if
    pyspark or a Java is missing, or if a session with another master is running.
    """
    ensure_pyspark()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        ensure_java()
        master = master or DEFAULT_MASTER
    elif master is not None:
        raise InvalidRequest(
            "cannot start Spark, spark-submit sets the master", asked=master, fix="spark-submit --master"
        )
    settings = settings_for(master, conf or {})
    _choose_python(master, settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _choose_python(master: str | None, settings: Mapping[str, str]) -> None:
    """Set the Python of the workers: Spark's default, the first python3 on PATH, may lack our packages."""
    if master is None:
        return  # set by spark-submit, or the cluster's default
    asked = next((settings[name] for name in _PYTHONS if name in settings), None)
    if is_on_this_machine(master):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = asked or sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif asked is not None:
        os.environ["PYSPARK_PYTHON"] = asked
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
