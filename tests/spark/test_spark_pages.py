"""The pages about Spark are run in order, every Python block and every command, with the shared Spark session.

Addresses become directories: ``s3://my-bucket`` is below the directory of the test. Masters become that of the session.
Lines that need a cluster are listed in `documented_pages`. `test_spark_submit.py` runs one ``spark-submit`` of the page
about clusters.
"""

from __future__ import annotations

import glob
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from documented_pages import ELSEWHERE, NEEDS_A_CLUSTER
from external_samples import new_key, put_aiven, put_log, write_log
from page_runner import ROOT, blocks_of, lines_of

from local.format.record import Record
from local.names import TopicPartition
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.manager.manager import LogManager

pytestmark = pytest.mark.spark
RECORDS = 500
_S3 = re.compile(r"s3a?://(?=[\w-])")
_PATH = re.compile(r"(?<![\w:.\-/}])/(mnt|secrets)\b")


class Unstopped:
    """The shared Spark session, with a `stop` that does nothing."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


class Follower:
    """A directory with a Spark session. `names` are the variables that the Python blocks have defined."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.folder, self.spark = folder, spark
        self.names: dict[str, Any] = {"spark": Unstopped(spark)}

    def here(self, text: str) -> str:
        return _PATH.sub(rf"{self.folder}/\1", _S3.sub(f"{self.folder.as_uri()}/", text))

    def python(self, body: str) -> None:
        exec(compile(self.here(body), "page", "exec"), self.names)

    def command(self, line: str) -> None:
        """Run a command in this process, with file name patterns expanded like by a shell."""
        words = [each for word in shlex.split(self.here(line)) for each in (sorted(glob.glob(word)) or [word])]
        assert words[0] == "tiered", line
        assert invoke(words[1:]) == 0, line

    def node(self, place: str, bucket: str, topics: Mapping[str, Mapping[str, str]]) -> None:
        """A node with the given topics in the bucket. All but the active segments are copied."""
        home, url = self.folder / place, self.folder / bucket
        home.mkdir(parents=True, exist_ok=True)
        url.mkdir(parents=True, exist_ok=True)
        small = {"segment.bytes": "4KiB", "append.batch.bytes": "512", "local.retention.ms": "1"}
        small["remote.storage.enable"] = "true"
        lines = ["[local]", 'dir = "data"', "[remote]", f'url = "{url.as_uri()}"', "[defaults]"]
        lines += [f'"{name}" = "{value}"' for name, value in small.items()]
        (home / "tiered.toml").write_text("\n".join([*lines, ""]))
        now_ms = time.time_ns() // 1_000_000 - 60_000
        with LogManager.open(Config.load(str(home / "tiered.toml"), {}, {}), now_ms=now_ms) as manager:
            for topic, properties in topics.items():
                manager.topics.create(topic, 1, properties, now_ms=now_ms)
            for at in range(0, RECORDS, RECORDS // 4):  # each part is dropped before the next is cleaned
                records = [Record(b"k%d" % (n % 13), b"value %d" % n, now_ms) for n in range(at, at + RECORDS // 4)]
                for topic in topics:
                    manager.append(topic, records, now_ms=now_ms)
                    manager.partitions.roll(topic, now_ms=now_ms)
                while manager.tick(now_ms):
                    pass


@dataclass(frozen=True)
class Page:
    """`before` runs before the blocks of these numbers (from 0), `after` at the end."""

    before: Mapping[int, Callable[[Follower], None]]
    after: Callable[[Follower], None]


TOPICS: dict[str, dict[str, str]] = {"orders": {}, "prices": {"cleanup.policy": "compact"}}


def _a_bucket(page: Follower) -> None:
    page.node(".", "my-bucket/logs", TOPICS)
    for lake in ("lake/orders", "my-lake"):
        (page.folder / lake).mkdir(parents=True)


def _was_read(page: Follower) -> None:
    assert page.names["newest"].count() == 13
    lake = page.spark.read.parquet(page.here("s3://my-lake/orders"))
    assert lake.count() == RECORDS
    exported = page.spark.read.parquet(page.here("s3://lake/orders"))
    assert exported.count() == RECORDS


def _was_compacted(page: Follower) -> None:
    outcome = page.names["outcome"]
    assert (outcome.records_before > outcome.records_after, outcome.name.topic) == (True, "prices")


def _a_lake(page: Follower) -> None:
    (page.folder / "my-bucket" / "logs").mkdir(parents=True)
    rows = page.spark.range(200).selectExpr(
        "concat('o', id) order_id", "timestamp_millis(1700000000000 + id) placed_at"
    )
    rows.write.parquet(page.here("s3://my-lake/orders"))


def _readings(page: Follower) -> None:
    orders = page.here("s3://my-lake/orders")
    stream = page.spark.readStream.schema("order_id string, placed_at timestamp").parquet(orders)
    page.names["readings"] = stream.selectExpr("order_id key", "order_id value", "placed_at timestamp")


def _parted(page: Follower) -> None:
    for query in page.spark.streams.active:
        query.processAllAvailable()
        query.stop()
    page.names["orders"] = page.names["orders"].selectExpr("*", "cast(abs(hash(key)) % 12 as int) partition")


def _was_brought_in(page: Follower) -> None:
    counted = page.spark.read.format("tiered").option("subscribePattern", ".*").load(page.here("s3://my-bucket/logs"))
    assert {row["topic"]: row["count"] for row in counted.groupBy("topic").count().collect()} == {
        "orders": 400,
        "readings": 200,
    }


def _a_fleet(page: Follower) -> None:
    page.node(".", "bucket/logs", TOPICS)
    for number in (1, 2):
        page.node(f"mnt/fleet/node-{number}", "bucket/logs", {f"events-{number}": {}})


def _a_bucket_and_a_node(page: Follower) -> None:
    page.node(".", "bucket/logs", TOPICS)


def _orders_are_whole(page: Follower) -> None:
    orders = page.spark.read.format("tiered").option("subscribe", "orders").load(page.here("s3://bucket/logs"))
    assert orders.count() == RECORDS


def _a_brokers_logs(page: Follower) -> None:
    theirs = page.folder / "their-bucket" / "tiered"
    theirs.mkdir(parents=True)
    (page.folder / "my-bucket" / "logs").mkdir(parents=True)
    sample = write_log(page.folder / "log" / "orders-0")
    page.names["end"] = sample.end
    store = open_store(theirs.as_uri())
    for files in sample.segments:
        put_log(store, files)
    store.close()


def _aivens(page: Follower) -> None:
    """Write the same records in the layout of the Aiven plugin."""
    (page.folder / "secrets").mkdir()
    (page.folder / "their-bucket" / "tiered").rename(page.folder / "logs-of-a-broker")
    (page.folder / "their-bucket" / "tiered").mkdir()
    key = new_key(page.folder / "secrets" / "key1.pem")
    store = open_store((page.folder / "their-bucket" / "tiered").as_uri())
    for number, files in enumerate(write_log(page.folder / "again" / "orders-0").segments):
        put_aiven(store, files, number=number, compressed=True, key=key)
    store.close()


def _the_logs_again(page: Follower) -> None:
    (page.folder / "their-bucket" / "tiered").rename(page.folder / "aivens")
    (page.folder / "logs-of-a-broker").rename(page.folder / "their-bucket" / "tiered")


def _was_imported(page: Follower) -> None:
    from tiered.tables.remote_tables import open_remote

    with open_remote(page.here("s3://my-bucket/logs")) as bucket:
        assert bucket.reader().offsets(TopicPartition("orders", 0)) == (0, page.names["end"])


PAGES = {
    "backfill-with-spark": Page(before={0: _a_bucket}, after=_was_read),
    "compact-with-spark": Page(before={0: _a_bucket}, after=_was_compacted),
    "ingest-with-spark": Page(before={0: _a_lake, 1: _readings, 2: _parted}, after=_was_brought_in),
    "run-a-pipeline": Page(before={0: _a_fleet}, after=_orders_are_whole),
    "run-jobs-on-spark": Page(before={0: _a_bucket_and_a_node}, after=_orders_are_whole),
    "other-peoples-buckets": Page(before={0: _a_brokers_logs, 1: _aivens, 2: _the_logs_again}, after=_was_imported),
}


@pytest.mark.deep("the commands of every page about Spark")
@pytest.mark.parametrize("name", PAGES)
def test_every_spark_page_runs_to_its_end(
    name: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.spark.session.launched_session", lambda *words: Unstopped(spark))
    monkeypatch.setattr("external_samples.NAME", TopicPartition("orders", 0))
    monkeypatch.chdir(tmp_path)
    page, follower = PAGES[name], Follower(tmp_path, spark)
    for number, (language, body) in enumerate(blocks_of(ROOT / "docs" / "how-to" / f"{name}.md")):
        if number in page.before:
            page.before[number](follower)
        if language == "python":
            follower.python(body)
        for line in lines_of(body) if language != "python" else ():
            if line not in NEEDS_A_CLUSTER:
                follower.command(line)
    page.after(follower)


def test_every_page_assigned_to_this_module_is_run() -> None:
    assert {name for name, test in ELSEWHERE.items() if test == "tests/spark/test_spark_pages.py"} == set(PAGES)
