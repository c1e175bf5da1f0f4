"""Metrics of a running manager: every metric of the table is exported, has the correct value and sends no request."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection

import pytest
from manager_world import DAY, HOUR, NOW, TIERED, SwitchableStore, World, send, settle

from local.errors import AccessDenied, Corrupt, DiskFailed, Unavailable
from local.names import TopicPartition
from remote.fetch import read_ahead
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.observe.metrics import CACHE_MS, METRICS, Form, Kind, Metrics, Sample, exposition, form_of
from tiered.serve.security import addresses
from tiered.serve.security.addresses import LOOPBACK, parse_address
from tiered.service.observations import Histogram, Observations, open_observed
from tiered.service.worker import Worker
from tiered.web.http.server import MetricsServer, health_answer, metrics_answer

BY_NAME = {each.name: each for each in METRICS}

MINUTE = 60_000


class Station:
    """A manager whose disk and store are observed, with its metrics."""

    def __init__(self, world: World, store: object | None = None, *, by_partition: bool = False) -> None:
        self.seen = Observations()
        self.manager = open_observed(
            world.config, self.seen, now_ms=NOW, storage=world.disk, store=store or world.store
        )
        self.worker = Worker(self.manager, now_ms=NOW, interval_ms=30_000, observations=self.seen, counted=lambda: 0)
        self.metrics = Metrics(self.manager, self.seen, self.worker, by_partition=by_partition)

    def settle(self, now_ms: int = NOW) -> None:
        while self.worker.round(now_ms):
            pass

    def values(self, now_ms: int = NOW) -> dict[str, float]:
        """Value by metric name and labels, as printed. Histograms are represented by their counts."""
        found = {}
        for sample in self.metrics.samples(now_ms):
            labels = ",".join(f"{name}={value}" for name, value in sample.labels)
            value = sample.value if isinstance(sample.value, (int, float)) else sample.value.count
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = value
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_every_metric_of_the_table_is_exported(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    station = Station(world, store, by_partition=True)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.topics.create("c", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
        for topic in ("t", "c"):
            send(manager, 300, topic=topic)
        station.settle()
        list(manager.reader().records(TopicPartition("c", 0), 0, 1))
        store.is_down = True
        send(manager, 300, topic="t", start=300)
        station.worker.round(NOW)
        names = {sample.name for sample in station.metrics.samples(NOW)}
    # The model disk reports no free space. `test_free_and_total_bytes_of_the_log_directories_are_exported` covers
    # these.
    without_room = {"tiered_log_dir_free_bytes", "tiered_log_dir_total_bytes"}
    # covered by `test_adopt_metrics.py` and `test_endpoint_metrics.py`
    of_others = {each.name for each in METRICS if each.is_of_sidecar or each.is_of_endpoint}
    assert set(BY_NAME) - names == without_room | of_others
    assert names <= set(BY_NAME)


def test_partition_that_opens_late_counts_only_the_records_appended_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = Station(world)
    with station.manager as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        send(manager, 300)
        with monkeypatch.context() as patch:
            patch.setattr(manager.partitions, "all", lambda *names: [])
            station.metrics = Metrics(manager, station.seen)
            list(station.metrics.samples(NOW))
        assert station.values(NOW + HOUR)["tiered_append_records_total{topic=t}"] == 0
        send(manager, 20, start=300)
        assert station.values(NOW + 2 * HOUR)["tiered_append_records_total{topic=t}"] == 20


def test_missing_price_file_removes_only_the_cost_metrics(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.config = replace(world.config, overrides={**world.config.overrides, "cost.prices": "nowhere.json"})
    station = Station(world)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        names = {sample.name for sample in station.metrics.samples(NOW)}
    assert "tiered_local_log_bytes" in names
    assert "tiered_cost_dollars_per_month" not in names
    assert "does not exist" in caplog.text


def test_samples_have_the_labels_of_the_table(world: World) -> None:
    for by_partition in (False, True):
        station = Station(World(), by_partition=by_partition)
        with station.manager as manager:
            manager.topics.create("t", 2, TIERED, now_ms=NOW)
            station.settle()
            for sample in station.metrics.samples(NOW):
                metric = BY_NAME[sample.name]
                more = ("partition",) if by_partition and metric.by_partition else ()
                assert tuple(name for name, _ in sample.labels) == (*metric.labels, *more), sample.name


def test_counters_and_gauges_match_the_operations_performed(world: World) -> None:
    station = Station(world)
    with station.manager as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": str(3 * DAY)}, now_ms=NOW)
        send(manager, 300)
        manager.flush()
        before = station.values()
        assert before["tiered_append_records_total{topic=t}"] == 300
        assert before["tiered_append_bytes_total{topic=t}"] == before["tiered_local_log_bytes{topic=t}"] > 0
        assert before["tiered_unreplicated_bytes{topic=t}"] == before["tiered_local_log_bytes{topic=t}"]
        assert before["tiered_remote_copy_lag_segments{topic=t}"] > 1
        assert before["tiered_todo_segments{action=CopySegment}"] == before["tiered_remote_copy_lag_segments{topic=t}"]
        assert before["tiered_fsync_duration_seconds"] > 0
        assert station.values(NOW + HOUR)["tiered_remote_copy_lag_seconds{topic=t}"] == 3600
        station.settle()
        after = station.values()
        assert (
            after["tiered_remote_copy_lag_segments{topic=t}"] == after["tiered_remote_copy_lag_seconds{topic=t}"] == 0
        )
        assert after["tiered_remote_log_bytes{topic=t}"] == after["tiered_remote_copy_bytes_total{topic=t}"] > 0
        assert after["tiered_remote_copy_requests_total{topic=t}"] == after["tiered_remote_log_segments{topic=t}"]
        assert after["tiered_append_bytes_total{topic=t}"] == before["tiered_append_bytes_total{topic=t}"]
        list(manager.reader().records(TopicPartition("t", 0), 0))
        read = station.values()
        assert read["tiered_remote_fetch_bytes_total{topic=t}"] == after["tiered_remote_log_bytes{topic=t}"]
        assert read["tiered_remote_fetch_requests_total{topic=t}"] > 0
        assert read["tiered_cache_misses_total"] > 0
        station.settle(NOW + 3 * DAY)
        gone = station.values(NOW + 3 * DAY)
        assert gone["tiered_remote_log_bytes{topic=t}"] == 0
        assert gone["tiered_remote_delete_lag_bytes{topic=t}"] >= after["tiered_remote_log_bytes{topic=t}"]
        assert gone["tiered_remote_delete_overdue_bytes{topic=t}"] == 0
        late = station.values(NOW + 4 * DAY + HOUR)
        overdue = late["tiered_remote_delete_overdue_bytes{topic=t}"]
        assert overdue == gone["tiered_remote_delete_lag_bytes{topic=t}"]
        assert late["tiered_remote_delete_overdue_seconds{topic=t}"] == 3600
        station.settle(NOW + 5 * DAY)
        assert station.values()["tiered_remote_delete_requests_total{topic=t}"] > 0
        assert station.values()["tiered_remote_delete_lag_bytes{topic=t}"] == 0


def test_store_failures_are_counted_by_operation_and_class(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    station = Station(world, store)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        assert not [name for name in station.values() if name.startswith("tiered_objstore_failures_total")]
        store.is_down = True
        for at in range(3):
            station.worker.round(NOW + at * MINUTE)
        found = station.values()
        assert found["tiered_objstore_failures_total{op=upload,class=Unavailable}"] == 3
        assert found["tiered_remote_copy_errors_total{topic=t}"] == 3
        assert found["tiered_partition_problems{class=Unavailable}"] == 1
        assert found["tiered_round_failures_total"] == 0
        assert found["tiered_halted"] == 0
        assert station.worker.problem_lines() == ["t/0: the store is down: verb=upload"]


def test_remote_metrics_have_no_samples_until_the_bucket_was_read_once(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.topics.create("here", 1, now_ms=NOW)
        send(manager, 200)
        settle(manager)
    before = Station(world)
    with before.manager:
        known = before.values()
    store = SwitchableStore(world.store)
    station = Station(world, store)
    with station.manager:
        station.worker.round(NOW)
        away = station.values()
        left_out = {name for name in known if name not in away and name.startswith("tiered_")}
        gauges = ("remote_log", "unreplicated", "remote_copy_lag", "remote_delete_lag", "remote_delete_overdue")
        bucket = {name for name in known if name.startswith(tuple(f"tiered_{each}_" for each in gauges))}
        bucket -= {"tiered_remote_log_reader_task_queue_size"}  # of the process: reads of other tests count
        assert left_out >= {name for name in bucket if name.endswith("{topic=t}")}
        assert {name for name in left_out if "topic=here" in name} == set()
        dollars = "tiered_cost_dollars_per_month{topic=t,kind=%s}"
        assert {dollars % kind for kind in ("storage", "index", "waiting")} <= left_out
        for same in ("tiered_local_log_bytes{topic=t}", "tiered_remote_copy_paused_seconds{topic=t}", dollars % "disk"):
            assert away[same] == known[same]
        assert away["tiered_partition_problems{class=Unavailable}"] == 1
        store.is_down = False
        station.settle(NOW + HOUR)
        again = station.values()
        assert {name: again[name] for name in bucket} == {name: known[name] for name in bucket}
        store.is_down = True
        station.worker.round(NOW + 2 * HOUR)
        assert station.values()["tiered_remote_log_bytes{topic=t}"] > 0, "the last known value must stay exported"


def test_partition_taken_over_by_another_writer_counts_as_halted(world: World) -> None:
    station = Station(world)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        station.settle()
        with world.open(disk=world.other_disk()):
            pass
        send(manager, 200, start=200)
        station.worker.round(NOW)
        assert station.values()["tiered_halted"] == 1
        manager.partitions.problems = {TopicPartition("t", 0): Corrupt("reading", cause="crc")}
        assert station.values()["tiered_partition_problems{class=Corrupt}"] == 1


class NeitherWay(SwitchableStore):
    """A store whose uploads and deletes give no answer while it is down. All other calls work."""

    verbs = ("upload", "delete")

    def __getattr__(self, verb: str) -> Callable[..., object]:
        return super().__getattr__(verb) if verb in self.verbs else getattr(self.inner, verb)


class NoIndexes(NeitherWay):
    """The same for index objects: the data object is uploaded, the put of the indexes gives no answer."""

    verbs = ("put", "delete")


class Refusing(NeitherWay):
    """A store that refuses uploads and deletes with an error instead of giving no answer."""

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def refuse(*args: object, **more: object) -> object:
            raise AccessDenied("the store rejected the request", verb=verb)

        return refuse if self.is_down and verb in self.verbs else getattr(self.inner, verb)


def test_orphans_of_failed_uploads_are_counted_each_time_and_logged_once(world: World, caplog) -> None:
    store = NeitherWay(world.store, is_down=False)
    station = Station(world, store)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        for trouble in (1, 2):
            send(manager, 30, start=manager.partitions.find(TopicPartition("t", 0)).log.next_offset)
            manager.partitions.roll("t", now_ms=NOW)
            store.is_down = True
            for _ in range(5):
                station.worker.round(NOW)
            told = [each for each in caplog.records if "objects of a failed upload" in each.message]
            assert [each.levelname for each in told if each.levelno >= logging.INFO] == ["WARNING"] * trouble
            assert station.values()["tiered_remote_left_objects_total"] == trouble * 5
            store.is_down = False
            station.settle()
    assert manager.problems == {}


@pytest.mark.parametrize(("kind", "each_time"), [(NeitherWay, 1), (NoIndexes, 2), (Refusing, 0)])
def test_only_objects_that_a_failed_upload_may_have_left_are_counted(
    world: World, kind: type[NeitherWay], each_time
) -> None:
    store = kind(world.store, is_down=False)
    station = Station(world, store)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 30)
        manager.partitions.roll("t", now_ms=NOW)
        store.is_down = True
        for tries in (1, 2, 3):
            station.worker.round(NOW)
            assert station.values()["tiered_remote_left_objects_total"] == tries * each_time
        store.is_down = False
        station.settle()


def test_queued_read_ahead_ranges_are_counted(world: World, monkeypatch) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    pool = read_ahead._Threads(2)
    monkeypatch.setattr(read_ahead, "_threads", pool)

    def fetch() -> None:
        begun.release()
        go_on.wait(30)

    station = Station(world)
    with station.manager:
        idle = station.values()
        fetched = [pool.submit(fetch) for _ in range(5)]
        for _ in range(2):
            assert begun.acquire(timeout=30)
        busy = station.values()
        go_on.set()
        for each in fetched:
            each.result(30)
    names = "tiered_remote_log_reader_task_queue_size", "tiered_remote_log_reader_idle_ratio"
    assert [idle[name] for name in names] == [0, 1]
    assert [busy[name] for name in names] == [3, 0]


def test_a_scrape_sends_no_request(world: World, monkeypatch) -> None:
    monkeypatch.setattr(
        commit_protocol,
        "PAGE_RULE",
        PageRule(manifest_bytes_max=2600, page_rows_max=16, page_rows_min=4, kept_entries_min=8),
    )
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": str(2 * DAY)}, now_ms=NOW)
        manager.topics.create("c", 1, {"cleanup.policy": "compact"}, now_ms=NOW)  # for the figures of the cleaner
        send(manager, 3000)
        settle(manager)
        assert manager.partitions.find(TopicPartition("t", 0)).manifest().pages, (
            "some entries must be in manifest pages, which only the bucket holds"
        )
    station = Station(world)  # it has read no manifest page yet
    with station.manager as manager:
        before = manager.store.counts()
        for at in range(0, 10 * DAY, DAY):
            station.metrics.text(NOW + at)
        assert manager.store.counts() == before


def test_free_and_total_bytes_of_the_log_directories_are_exported(tmp_path) -> None:
    from dataclasses import replace

    from tiered.config.config import Config

    config = replace(Config.load(None, {}, {}, local_dir=str(tmp_path)), remote_url="memory://b")
    seen = Observations()
    with open_observed(config, seen, now_ms=NOW, store=MemoryStore()) as manager:
        found = {sample.name: sample.value for sample in Metrics(manager, seen).samples(NOW)}
    assert 0 < found["tiered_log_dir_free_bytes"] <= found["tiered_log_dir_total_bytes"]


def test_scrapes_at_the_same_time_share_one_result(world: World) -> None:
    station = Station(world)
    with station.manager:
        first = station.metrics.text(NOW)
        station.worker.round(NOW)
        assert station.metrics.text(NOW + CACHE_MS - 1) is first
        assert station.metrics.text(NOW + CACHE_MS) != first
        again = station.metrics.text(NOW + HOUR)
        assert station.metrics.text(NOW - HOUR) is not again, (
            "a clock that was set back must not extend the reuse of a result"
        )


# -- the text


def test_text_is_accepted_by_the_prometheus_parser(world: World) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    station = Station(world)
    with station.manager as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        station.settle()
        samples = list(station.metrics.samples(NOW))
    # of the same samples: figures of process threads differ between two scrapes
    text = exposition(samples, Form.PROMETHEUS)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    for sample in samples:
        metric = BY_NAME[sample.name]
        family = families[sample.name.removesuffix("_total") if metric.kind is Kind.COUNTER else sample.name]
        assert family.type == metric.kind.value
        assert family.documentation == metric.doc
        if isinstance(sample.value, (int, float)) and not sample.name.startswith("process_"):
            assert (dict(sample.labels), sample.value) in [(each.labels, each.value) for each in family.samples]


def test_text_is_accepted_by_the_strict_open_metrics_parser(world: World) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    station = Station(world, by_partition=True)
    with station.manager as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        send(manager, 200)
        station.settle()
        samples = list(station.metrics.samples(NOW))
        assert station.metrics.text(NOW, Form.OPEN_METRICS) != station.metrics.text(NOW)
    text = exposition(samples, Form.OPEN_METRICS)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    for sample in samples:
        metric = BY_NAME[sample.name]
        family = families[sample.name.removesuffix("_total") if metric.kind is Kind.COUNTER else sample.name]
        assert (family.type, family.documentation) == (metric.kind.value, metric.doc)
        if isinstance(sample.value, (int, float)) and not sample.name.startswith("process_"):
            assert (dict(sample.labels), sample.value) in [(each.labels, each.value) for each in family.samples]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.PROMETHEUS),
        ("*/*", Form.PROMETHEUS),
        ("text/html, */*;q=0.1", Form.PROMETHEUS),
        ("application/openmetrics-text", Form.OPEN_METRICS),
        ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", Form.OPEN_METRICS),
        # The header that Prometheus 2 and 3 send.
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            Form.OPEN_METRICS,
        ),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Form.PROMETHEUS,
        ),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.5", Form.PROMETHEUS),
        ("application/openmetrics-text;q=0", Form.PROMETHEUS),
        ("application/openmetrics-text;q=much", Form.PROMETHEUS),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.5", Form.PROMETHEUS),
        (",;;q=,=;\x00", Form.PROMETHEUS),
    ],
)
def test_exposition_form_with_the_highest_weight_is_chosen(accept: str, form: Form) -> None:
    assert form_of(accept) is form


def test_labels_are_escaped_and_numbers_are_exact() -> None:
    odd = Sample("tiered_log_dir_offline", 1, (("directory", 'a"b\\c\nd'),))
    text = exposition([odd, Sample("tiered_cache_bytes", 2**53), Sample("process_cpu_seconds_total", 0.1)])
    assert r'directory="a\"b\\c\nd"} 1' in text
    assert "tiered_cache_bytes 9007199254740992\n" in text or "tiered_cache_bytes 9007199254740992.0\n" in text
    assert "process_cpu_seconds_total 0.1\n" in text


def test_metric_outside_the_table_is_refused() -> None:
    with pytest.raises(AssertionError, match="tiered_nothing"):
        exposition([Sample("tiered_nothing", 1)])


def test_metric_names_follow_the_prometheus_rules() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"(tiered|process)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert not re.search(r"_(ms|kb|mb|percentage)$", metric.name)
        assert metric.doc.endswith((".", "`."))
    assert len(BY_NAME) == len(METRICS)


def test_a_histogram_counts_up_to_its_bounds_and_above() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(seconds)
    assert histogram.counts().buckets == ((1.0, 2), (2.0, 4), (float("inf"), 5))
    assert (histogram.counts().count, histogram.counts().total) == (5, 14.0)


# -- observed disk and store


def test_appended_bytes_count_log_files_only_and_failed_syncs_are_counted() -> None:
    seen = Observations()
    seen.appended("/data/orders-3/00000000000000000000.log", 100)
    seen.appended("/data/orders-3/00000000000000000000.index", 8)
    seen.appended("/data/topics.json.tmp", 50)
    seen.synced("/data/orders-3/00000000000000000000.log", 0.01, None)
    seen.synced("/data/orders-3/00000000000000000000.log", 0.01, DiskFailed("syncing", cause="eio"))
    assert seen.of("appended_bytes") == {("orders",): 100}
    assert seen.of("fsync_failures") == {(): 1}
    assert seen.fsyncs.counts().count == 2


def test_context_around_store_calls_passes_errors_on(world: World) -> None:
    done: list[str] = []

    class Block:
        def __init__(self, op: str) -> None:
            self.op = op

        def __enter__(self) -> None:
            done.append(f"+{self.op}")

        def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
            done.append(f"-{self.op}:{kind.__name__ if kind else 'ok'}")

    store = SwitchableStore(world.store, is_down=True)
    seen = Observations()
    manager = open_observed(
        world.config, seen, now_ms=NOW, storage=world.disk, store=store, around=lambda op, key: Block(op)
    )
    with pytest.raises(Unavailable):
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    manager.close()
    assert done[0].startswith("+")
    assert any(each.endswith(":Unavailable") for each in done)
    assert len(done) % 2 == 0


# -- over HTTP


def test_endpoint_serves_only_metrics_and_health() -> None:
    troubles: list[str] = []
    answers = {
        "/metrics": metrics_answer(lambda form: f"tiered_halted 0 {form.name}\n"),
        "/health": health_answer(lambda: troubles),
    }
    server = MetricsServer(LOOPBACK, 0, answers)
    server.start()
    try:

        def ask(verb: str, path: str, accept: str = "*/*") -> tuple[int, str, str]:
            connection = HTTPConnection(*server.address, timeout=30)
            connection.request(verb, path, headers={"Accept": accept})
            answer = connection.getresponse()
            found = answer.status, answer.headers["Content-Type"], answer.read().decode()
            connection.close()
            return found

        told = (200, "text/plain; version=0.0.4; charset=utf-8", "tiered_halted 0 PROMETHEUS\n")
        assert ask("GET", "/metrics") == told
        status, kind, text = ask("GET", "/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        assert text == "tiered_halted 0 OPEN_METRICS\n"
        assert ask("GET", "/metrics?x=y")[0] == 200
        assert ask("HEAD", "/metrics")[2] == ""
        assert ask("GET", "/health") == (200, "text/plain; charset=utf-8", "ok\n")
        troubles.append("orders/2: uploading: cause=slowdown")
        assert ask("GET", "/health") == (503, "text/plain; charset=utf-8", "orders/2: uploading: cause=slowdown\n")
        assert ask("GET", "/../etc/passwd")[0] == HTTPStatus.NOT_FOUND
        assert ask("POST", "/metrics")[0] == HTTPStatus.METHOD_NOT_ALLOWED
    finally:
        server.close()


def test_unresponsive_name_server_does_not_delay_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, never = threading.Event(), threading.Event()

    def getfqdn() -> str:
        asked.set()
        assert never.wait(60)
        return "too.late.example.net"

    monkeypatch.setattr(addresses, "LOOK_UP_S", 0.05)
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7.example.net")
    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    assert addresses.own_names() == {"node-7.example.net", "node-7"}
    assert asked.wait(60)
    never.set()


@pytest.mark.parametrize("listen", [LOOPBACK, "0.0.0.0"])
def test_request_with_an_unknown_host_header_gets_no_metrics(listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-7.example.net")  # fully qualified, as many systems have it
    monkeypatch.setattr(socket, "getfqdn", lambda: "node-7.rack-2.example.net")
    told = metrics_answer(lambda form: "tiered_halted 0\n")
    answers = {"/metrics": told, "/health": health_answer(lambda: ["secret"])}
    server = MetricsServer(listen, 0, answers, hosts=("Logs.example.org",))
    server.start()
    try:

        def ask(path: str, host: str) -> tuple[int, str]:
            connection = HTTPConnection("127.0.0.1", server.address[1], timeout=30)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            found = answer.status, answer.read().decode()
            connection.close()
            return found

        names = ("node-7.example.net", "node-7.rack-2.example.net", "node-7", "NODE-7:9464", "node-7.example.net.:9464")
        own = () if listen == LOOPBACK else names
        named = ("localhost:9464", "127.0.0.1", "[::1]:9464", "10.1.2.3:9464", "[fd00::7]", "logs.example.org:9464", "")
        for host in (*named, *own):
            assert ask("/metrics", host) == (200, "tiered_halted 0\n"), host
            assert ask("/health", host) == (503, "secret\n"), host
        for host in ("evil.example", "evil.example:9464", "127.0.0.1.evil.example", "logs.example.org.evil", "1.2.3"):
            for path in ("/metrics", "/health", "/else"):
                status, text = ask(path, host)
                assert status == HTTPStatus.MISDIRECTED_REQUEST, host
                assert "secret" not in text
                assert "halted" not in text
    finally:
        server.close()


def test_listening_on_an_address_in_use_is_refused() -> None:
    from local.errors import InvalidRequest

    server = MetricsServer(LOOPBACK, 0, {})
    server.start()
    try:
        with pytest.raises(InvalidRequest, match="address already in use"):
            MetricsServer(*server.address, {})
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "found"),
    [(":9464", ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9464", ("::1", 9464)),
     ("9464", None), (":", None), (":99999", None), ("host:", None), ("host:x", None)],
)  # fmt: skip
def test_listen_address_is_parsed_or_refused(text: str, found: tuple[str, int] | None) -> None:
    from local.errors import InvalidRequest

    if found is not None:
        assert parse_address(text) == found
        return
    with pytest.raises(InvalidRequest, match="expected"):
        parse_address(text)
