"""Archives of loaded classes, from which the JVMs of the tests start (class data sharing of Java 13 and later).

To load and verify its classes takes half of the start of Spark, of a Kafka broker and of Kafka's tools. A JVM with the
archive of its Java and its class path maps them from a file instead. An archive of another Java or class path is
ignored by the JVM, and a missing one too.

Run as a program, this module makes the archives that are missing, in the user's cache folder. `.ci/run` does so while
it checks types; a run of all tests does so beside the first tests. A file appears whole, by a rename under a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka_artifacts import Kafka

ROOT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiered-interop"
# A short run gains from one compiler and the serial collector: both start faster.
SHORT_RUNS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # also about a missing archive
_SECONDS_MAX = 280
SPARK_SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
_SPARK_JOB = """
import sys
from tiered.spark.session import spark_session
spark = spark_session("class archive")
rows = spark.range(1000).selectExpr("id", "id % 7 as key", "encode(string(id), 'utf-8') as value")
rows.write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).groupBy("key").agg({"id": "max"}).collect()
rows.mapInArrow(lambda batches: batches, rows.schema).count()
spark.stop()
"""


def archive(name: str, java: str, class_path: str) -> Path:
    """Return the path of an archive. It may not exist yet."""
    # `-version` costs a JVM, and a Java that was replaced has another file.
    made_of = f"{Path(java).resolve()} {Path(java).stat().st_mtime_ns} {class_path}"
    return ROOT / "classes" / f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jsa"


def options(path: Path) -> tuple[str, ...]:
    """Return the options of a JVM that uses an archive if it exists."""
    return (f"-XX:SharedArchiveFile={path}", *_QUIET)


def make(path: Path, run: Callable[[tuple[str, ...]], object]) -> None:
    """Create an archive, unless it exists. `run` gets options, and runs a JVM with them that ends by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            run((f"-XX:ArchiveClassesAtExit={unfinished}", *_QUIET))
            unfinished.rename(path)


def spark_environment() -> dict[str, str]:
    """Return the variables by which Spark's drivers, executors and daemons start as JVMs of tests.

    They stand for a file `spark-defaults.conf`: a JVM has no archive if its class path has a directory with files.
    """
    path = _spark_archive()
    return {} if path is None else _spark_variables(options(path))


def _spark_variables(of_archive: tuple[str, ...]) -> dict[str, str]:
    words = " ".join((*SHORT_RUNS, *of_archive))
    settings = " ".join(f"-D{name}={value}" for name, value in SPARK_SETTINGS.items())
    return {
        "SPARK_SUBMIT_OPTS": f'{words} {settings} "-Dspark.executor.extraJavaOptions={words}"',
        "SPARK_DAEMON_JAVA_OPTS": words,
        "SPARK_LAUNCHER_OPTS": " ".join(SHORT_RUNS),
    }


def _spark_archive() -> Path | None:
    java, pyspark = _java(), importlib.util.find_spec("pyspark")  # an import would take half a second
    return archive("spark", java, str(pyspark.origin)) if java and pyspark else None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def _make_spark() -> None:
    path = _spark_archive()
    if path is not None:
        make(path, _run_spark)


def _run_spark(of_archive: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # The call returns when the JVM of the driver has closed its output, which is after it wrote the archive.
        _run([sys.executable, "-c", _SPARK_JOB, f"{folder}/rows"], {**os.environ, **_spark_variables(of_archive)})


def _make_kafka() -> None:
    from kafka_artifacts import KafkaMissing, find_kafka

    try:
        kafka = find_kafka()
    except KafkaMissing:
        return
    make(kafka.broker_archive, lambda options: _run_kafka(kafka, options))


def _run_kafka(kafka: Kafka, of_archive: tuple[str, ...]) -> None:
    from kafka_broker import KafkaBroker

    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(kafka, Path(folder), classes=of_archive)
        broker.format()
        broker.start()
        try:
            # It creates a topic, produces and consumes.
            tool = ["org.apache.kafka.tools.EndToEndLatency", broker.address, "t", "10", "all", "100"]
            make(kafka.tools_archive, lambda options: _run(kafka.command(*tool, classes=options)))
        finally:
            broker.stop()


def _run(command: list[str], variables: Mapping[str, str] = os.environ) -> None:
    subprocess.run(command, env=variables, check=True, capture_output=True, timeout=_SECONDS_MAX)


if __name__ == "__main__":
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[3] / name) for name in ("", "localstack", "tests/interop")]
    _make_kafka()
    _make_spark()
