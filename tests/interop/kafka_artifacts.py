"""The pinned Apache Kafka and a Java to run it: jars from Maven Central, downloaded once into the user's cache.

The jars of a version are in one directory, which is renamed into place under a lock. Parallel test workers and an
aborted download so leave the complete directory or none. No jar is part of the checkout.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from class_archives import ROOT, SHORT_RUNS, archive, options

KAFKA_VERSION = "4.1.1"
_LOG4J_VERSION = "2.24.3"  # the log4j-core of this Kafka version
_SCALA_VERSION = "2.13"
_JAVA_MAJOR_MIN = 17  # required by Kafka 4 brokers
_FETCH_SECONDS_MAX = 200  # 54 MB; less than the timeout of a test
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# Spark's artifacts name their own mirror of Maven Central. It is replaced by Maven Central here.
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>kafka</artifactId><version>1</version>
  <repositories><repository>
    <id>gcs-maven-central-mirror</id><url>https://repo.maven.apache.org/maven2</url>
  </repository></repositories>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}"
    "<exclusions>{}</exclusions></dependency>"
)
_CLASSIFIER = "<classifier>{}</classifier>"
_EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
_ARTIFACTS = (
    ("org.apache.kafka", f"kafka_{_SCALA_VERSION}", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J_VERSION),
)


# The tools of Kafka 3, which still have the protocol versions of that release as their newest.
KAFKA_3_VERSION = "3.9.1"
_KAFKA_3 = (
    ("org.apache.kafka", f"kafka_{_SCALA_VERSION}", KAFKA_3_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_3_VERSION),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
_STREAMS = (("org.apache.kafka", "kafka-streams", KAFKA_VERSION),)
# Spark 4.3 runs the connector of 4.2: the registry had no newer one. The rest of its dependencies are those of pyspark.
_SPARK_CONNECTOR_VERSION = "4.2.0"
_SPARK_CONNECTOR = (
    ("org.apache.spark", f"spark-sql-kafka-0-10_{_SCALA_VERSION}", _SPARK_CONNECTOR_VERSION),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{_SCALA_VERSION}", _SPARK_CONNECTOR_VERSION),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
_MIRROR_MAKER = (("org.apache.kafka", "connect-mirror", KAFKA_VERSION),)
# Kafka's remote storage manager for tests, in a jar of test classes without dependencies beyond the broker's.
_TIERED_STORAGE = (("org.apache.kafka", "kafka-storage", KAFKA_VERSION, "test"),)


class KafkaMissing(Exception):
    """Why this machine cannot download or run the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """A Java command and the class path of the broker and its tools."""

    java: str
    class_path: str

    @property
    def tools_archive(self) -> Path:
        return archive("kafka-tools", self.java, self.class_path)

    @property
    def broker_archive(self) -> Path:
        return archive("kafka-broker", self.java, self.class_path)

    def command(self, *words: str, classes: Sequence[str] | None = None) -> list[str]:
        """The command of a short run: options of the JVM, a class, and its arguments.

        `classes` are options about the archive of classes. The default is the archive of the tools.
        """
        classes = options(self.tools_archive) if classes is None else classes
        return [self.java, *SHORT_RUNS, *classes, "-cp", self.class_path, *words]


def find_kafka() -> Kafka:
    """The pinned Kafka, downloaded on first use. Raises KafkaMissing."""
    jars = fetch_jars(f"kafka-{KAFKA_VERSION}-log4j-{_LOG4J_VERSION}", _ARTIFACTS)
    return Kafka(java=_find_java(), class_path=f"{jars}/*")


def find_tiered_kafka() -> Kafka:
    """Like `find_kafka`, with `LocalTieredStorage` on the class path. Raises KafkaMissing."""
    kafka = find_kafka()
    jars = fetch_jars(f"kafka-storage-test-{KAFKA_VERSION}", _TIERED_STORAGE, without=(("*", "*"),))
    return Kafka(java=kafka.java, class_path=f"{kafka.class_path}:{jars}/*")


def find_kafka_3() -> Kafka:
    """The tools of Kafka 3. Raises KafkaMissing."""
    return Kafka(java=_find_java(), class_path=f"{fetch_jars(f'kafka-{KAFKA_3_VERSION}', _KAFKA_3)}/*")


def find_streams() -> Kafka:
    """Kafka Streams. Raises KafkaMissing."""
    return Kafka(java=_find_java(), class_path=f"{fetch_jars(f'kafka-streams-{KAFKA_VERSION}', _STREAMS)}/*")


def find_mirror_maker() -> Kafka:
    """MirrorMaker 2, with the logging of the broker. Raises KafkaMissing."""
    kafka = find_kafka()
    jars = fetch_jars(f"connect-mirror-{KAFKA_VERSION}", _MIRROR_MAKER)
    return Kafka(java=kafka.java, class_path=f"{kafka.class_path}:{jars}/*")


def find_spark_connector() -> Path:
    """A directory with the jars that Spark needs for its Kafka connector. Raises KafkaMissing."""
    return fetch_jars(f"spark-kafka-{_SPARK_CONNECTOR_VERSION}", _SPARK_CONNECTOR, without=(("*", "*"),))


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    for java in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if java and os.access(java, os.X_OK) and _java_major(java) >= _JAVA_MAJOR_MIN:
            return java
    raise KafkaMissing(f"no Java >= {_JAVA_MAJOR_MIN} found (JAVA_HOME, PATH)")


def _java_major(java: str) -> int:
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    found = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else 0


def fetch_jars(folder: str, artifacts: Sequence[tuple[str, ...]], without: Sequence[tuple[str, str]] = ()) -> Path:
    """A directory with the jars of artifacts and their dependencies, except those of `without`.

    An artifact is (group, name, version), followed by its classifier if it has one.

    Raises KafkaMissing.
    """
    jars = ROOT / folder
    if jars.is_dir():
        return jars
    if shutil.which("mvn") is None:
        raise KafkaMissing(f"{folder} is not in {ROOT} and there is no mvn to fetch it (Debian: maven)")
    try:
        ROOT.mkdir(parents=True, exist_ok=True)
        with (ROOT / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not jars.is_dir():
                _download(jars, _dependencies(artifacts, without))
    except OSError as error:
        raise KafkaMissing(f"fetching {folder} into {ROOT}: {error}") from error
    return jars


def _dependencies(artifacts: Sequence[tuple[str, ...]], without: Sequence[tuple[str, str]]) -> str:
    exclusions = "".join(_EXCLUSION.format(*each) for each in without)
    parts = ((*each[:3], "".join(map(_CLASSIFIER.format, each[3:]))) for each in artifacts)
    return "".join(_DEPENDENCY.format(*each, exclusions) for each in parts)


def _download(jars: Path, dependencies: str) -> None:
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        pom = Path(folder, "pom.xml")
        pom.write_text(_POM.format(dependencies=dependencies))
        # -C: a jar with another checksum is refused.
        words = [
            "mvn",
            "-q",
            "-B",
            "-C",
            "-f",
            str(pom),
            _COPY,
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}/lib",
        ]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX, cwd=folder)
        except subprocess.TimeoutExpired:
            raise KafkaMissing(f"mvn did not fetch {jars.name} in {_FETCH_SECONDS_MAX} s") from None
        if done.returncode:
            told = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            raise KafkaMissing(f"mvn could not fetch {jars.name}: {' '.join(told[:1])[:500]}")
        Path(folder, "lib").rename(jars)
