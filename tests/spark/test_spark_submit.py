"""Commands on a cluster: a standalone master and a worker on this machine, and ``spark-submit`` of the package."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bucket_samples import NOW_MS
from bucket_truth import assert_sound

from local.errors import InvalidRequest
from local.records.batch import encode_batch
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from tiered.spark import session
from tiered.spark.session import ensure_java

pytestmark = pytest.mark.spark

ROOT = str(Path(__file__).parents[2])
PAGE = Path(ROOT, "docs", "how-to", "run-jobs-on-spark.md")
LIMIT_S = 90


class Cluster:
    """A master and a worker with two cores, on ports chosen by the system."""

    def __init__(self, folder):
        import pyspark

        self.home = Path(pyspark.__file__).parent
        self.folder, self._processes = folder, []
        self.environment = {
            **os.environ,
            "JAVA_HOME": ensure_java(),
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": ROOT,
        }
        deploy = "org.apache.spark.deploy"
        log = self._start(
            "master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        self.url = self._told(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        words = [
            "--host",
            "127.0.0.1",
            "--cores",
            "2",
            "--memory",
            "700m",
            "--webui-port",
            "0",
            "-d",
            str(folder),
            self.url,
        ]
        log = self._start("worker", f"{deploy}.worker.Worker", *words)
        self._told(log, r"Successfully registered with master (\S+)")

    def _start(self, name, *words):
        path = self.folder / f"{name}.log"
        with open(path, "wb") as out:
            command = [str(self.home / "bin" / "spark-class"), *words]
            self._processes.append(
                subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=self.environment, cwd=self.folder)
            )
        return path

    def _told(self, path, pattern):
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = re.search(pattern, path.read_text())
            if found:
                return found[1]
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.1)
        raise AssertionError(path.read_text()[-3000:])

    def submit(self, *words):
        where = subprocess.run(
            [sys.executable, "-m", "tiered.spark.submit"],
            capture_output=True,
            text=True,
            env=self.environment,
            check=True,
        )
        conf = ["--conf", "spark.executor.memory=512m", "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"]
        command = [str(self.home / "bin" / "spark-submit"), "--master", self.url, *conf, where.stdout.strip(), *words]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self.folder, timeout=200, check=False
        )

    def stop(self):
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)


@pytest.fixture
def cluster(tmp_path_factory):
    try:
        found = Cluster(tmp_path_factory.mktemp("cluster"))
    except InvalidRequest as error:
        pytest.skip(str(error))
    yield found
    found.stop()


@pytest.mark.deep("a master and a worker of Spark")
def test_spark_submit_runs_the_command_on_a_standalone_cluster(cluster, file_bucket):
    for number in range(12):
        base = number * 10
        records = [(b"k%d" % at, b"v%d" % at, NOW_MS + at, ()) for at in range(base, base + 10)]
        file_bucket.add("orders", 0, [encode_batch(records, base_offset=base)])
    written = PAGE.read_text().replace("s3://bucket/logs", file_bucket.url)
    line = re.search(r"^spark-submit --master spark://master:7077 \$submit (rewrite .*)$", written, re.MULTILINE)
    assert line is not None, "the page about clusters must show the command"
    done = cluster.submit("-q", *shlex.split(line[1]), "-o", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(done.stdout)["partitions"]
    assert (row["rows_before"], row["rows_after"]) == (12, 12)
    (name,) = list_partitions(file_bucket.store)
    rows = MetadataLog(file_bucket.store, name.prefix).refresh().segments
    assert [each.codec for each in rows] == ["zstd"] * 12
    assert "Registered app tiered rewrite" in (cluster.folder / "master.log").read_text()
    assert "Asked to launch executor" in (cluster.folder / "worker.log").read_text()
    assert_sound(file_bucket.store)
    wrong = cluster.submit("rewrite", "merge", "nothing", "--remote", file_bucket.url, "--yes")
    assert wrong.returncode == 1, "the exit code must be that of the command"
    assert "the partition is not in the bucket" in wrong.stdout, "spark-submit must join stderr to stdout"


def test_session_settings_depend_on_the_master(monkeypatch):
    here = session.settings_for("local[*]", {"spark.driver.memory": "3g"})
    assert (here["spark.driver.host"], here["spark.driver.memory"]) == ("127.0.0.1", "3g")
    for master in ("spark://host:7077", "yarn", "k8s://https://api"):
        there = session.settings_for(master, {})
        assert there["spark.master"] == master
        assert not any(name.startswith(("spark.driver.", "spark.ui.enabled")) for name in there)
    assert "spark.master" not in session.settings_for(None, {})
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(InvalidRequest, match="spark-submit sets the master"):
        session.launched_session("x", "local[2]")


@pytest.mark.parametrize(
    ("master", "conf", "before", "then"),
    [
        ("local[2]", {}, "/elsewhere/python", sys.executable),
        ("local[2]", {"spark.pyspark.python": "/asked/python"}, None, "/asked/python"),
        ("yarn", {}, "./env/bin/python", "./env/bin/python"),
        ("yarn", {}, None, sys.executable),
        ("yarn", {"spark.pyspark.python": "./env/bin/python"}, "/elsewhere/python", "./env/bin/python"),
        (None, {}, "/submitted/python", "/submitted/python"),
    ],
)
def test_python_workers_use_the_right_interpreter(monkeypatch, master, conf, before, then):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "kept")  # so that values set below are restored
        monkeypatch.delenv(name)
    if before is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", before)
    session.choose_python(master, session.settings_for(master, conf))
    assert os.environ.get("PYSPARK_PYTHON") == then
