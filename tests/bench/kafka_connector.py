"""Spark's Kafka connector for benchmarks: its jars from Maven Central, as a class path for a local session.

Its companion for delegation tokens (spark-token-provider-kafka-0-10) is left out, because not every mirror of Maven
Central has it. `no_tokens` implements the calls of the connector to it for a broker without authentication, where the
original also does nothing. It is compiled against Spark's jars.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from kafka_artifacts import KafkaMissing, fetch_jars

VERSION = "4.2.0"  # the newest version; it runs on later Sparks
_NAME = "spark-sql-kafka-0-10_2.13"
_TOKENS = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13")


def class_path(work: Path) -> str:
    """The value of ``spark.driver.extraClassPath``. Classes are compiled into `work`. Raises KafkaMissing."""
    import pyspark

    found = fetch_jars(f"{_NAME}-{VERSION}", [("org.apache.spark", _NAME, VERSION)], without=[_TOKENS])
    brought = Path(pyspark.__file__).parent / "jars"
    names = {_without_version(path) for path in brought.iterdir()}
    jars = sorted(str(path) for path in found.iterdir() if _without_version(path) not in names)
    return ":".join([str(_compiled(work / "no_tokens", brought)), *jars])


def _without_version(jar: Path) -> str:
    return re.sub(r"-[0-9][^-]*(-[A-Za-z0-9]+)?[.]jar$", "", jar.name)


def _compiled(into: Path, jars: Path) -> Path:
    javac = shutil.which("javac")
    if javac is None:
        raise KafkaMissing("no javac on PATH to compile what stands in for the connector's token provider")
    sources = sorted(map(str, (Path(__file__).parent / "no_tokens").glob("*.java")))
    words = [javac, "-nowarn", "-cp", f"{jars}/*", "-d", str(into), *sources]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise KafkaMissing(f"javac refused what stands in for the connector's token provider: {done.stderr[:500]}")
    return into
