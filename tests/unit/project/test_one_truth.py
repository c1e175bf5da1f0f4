"""All commands, pages and metrics report the same figures of a deployment, and these equal the stored bytes.

The reference is independent of them: it walks the disk file by file and the bucket object by object.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest
from manager_world import DAY, NOW, send, settle

from local.names import TopicPartition, parse_partition_directory
from remote.manifest import commit_protocol
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import disable_tier
from remote.manifest.page_out import PageRule
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.config.price_file import configured_prices
from tiered.config.secrets import keyed_store
from tiered.cost.cost_advising import stored_segments_of
from tiered.inspect.segment_table import TableOptions, segment_rows
from tiered.manager.manager import LogManager
from tiered.observe.metrics import Metrics
from tiered.service.observations import Observations
from tiered.status.status_report import all_usage
from tiered.status.tier_history import points_now
from tiered.topics.topic_admin import usage_of_deleted
from tiered.web.pages.site import Site

LATER = NOW + 3 * DAY  # after the grace period
# Dollars for a MiB where S3 has cents for a GiB, so that rounding hides no byte. All topics fill the price bands
# together.
PRICES = {
    "disk_per_gb_month": 4e4,
    "classes": {
        "STANDARD": {"storage_bands": [[0.00002, 9e5], [None, 2e5]]},
        "GLACIER_IR": {"storage_bands": [[None, 1.5e5]], "min_bytes": 0},
    },
}
FILE = """
[local]
dirs = ["data"]
[remote]
url = "file://HOME/bucket"
[defaults]
"remote.storage.enable" = true
"segment.bytes" = "2000"
"index.interval.bytes" = "200"
"append.batch.bytes" = "300"
"local.retention.ms" = 1
"retention.ms" = -1
"remote.log.delete.grace.ms" = "2d"
"file.delete.delay.ms" = 0
"min.cleanable.dirty.ratio" = 0
"cost.prices" = "prices.json"
"""
TOPICS = {  # in addition, a fork of `both` and a deleted topic
    "both": {"local.retention.ms": "-2"},
    "cleaned": {"cleanup.policy": "compact"},
    "given-up": {},
    "giving-up": {},
    "here": {"remote.storage.enable": "false"},
    "late": {},
    "paged": {},
    "paged-and-gone": {},
    "paused": {},
    "sealed": {"remote.compression": "zstd", "remote.encryption.key.id": "one"},
    "waiting": {},
}
KINDS = ("storage", "index", "waiting", "disk")
OFFSETS = (
    ("earliest", "log_start_offset", 0),
    ("latest", "next_offset", 0),
    ("earliest-local", "local_start_offset", 0),
    ("latest-tiered", "remote_next_offset", 1),
)
GAUGES = {
    "tiered_local_log_bytes": "local_bytes",
    "tiered_local_log_segments": "local_segments",
    "tiered_remote_log_bytes": "remote_bytes",
    "tiered_remote_log_segments": "remote_segments",
    "tiered_log_start_offset": "log_start_offset",
    "tiered_log_end_offset": "next_offset",
    "tiered_unreplicated_bytes": "at_risk_bytes",
    "tiered_remote_copy_lag_bytes": "lag_bytes",
    "tiered_remote_copy_lag_segments": "lag_segments",
    "tiered_remote_delete_lag_bytes": "unlinked_bytes",
    "tiered_remote_delete_overdue_bytes": "overdue_bytes",
}
GIVEN_UP = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
DECIDED = {"CopySegment": "lag_bytes", "DeletePending": "overdue_bytes", "DeletePage": "overdue_bytes"}
IS_THERE = [("late", "lag_bytes"), ("waiting", "overdue_bytes"), ("paged-and-gone", "overdue_bytes")]
IS_THERE += [("paused", "lag_bytes"), ("here", "at_risk_bytes"), ("both", "local_segments")]
IS_THERE += [("dropped (deleted)", "waiting_dollars"), ("given-up", "waiting_dollars")]
NO_SUMS = {
    *("log_start_offset", "local_start_offset", "next_offset", "remote_next_offset", "cleaner_offset"),
    *("paused_since_ms", "lag_since_ms"),
}
LOOKED_AT_BY = {
    "local_bytes": 15,
    "remote_bytes": 11,
    "kept_dollars": 11,
    "lag_bytes": 9,
    "at_risk_bytes": 9,
    "overdue_bytes": 8,
    "objects_bytes": 5,
}  # or more sources
Seen = dict[tuple[str, str], dict[str, float]]  # (place, figure) -> {source: value}
Tell = Callable[[str, object, Mapping[str, object]], None]
Asked = Callable[[str, str], list[dict[str, Any]]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment with topics of every kind. Its clock is at LATER, and no maintenance ran since NOW."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TIERED_KEYS", f"one {base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)
    rule = PageRule(manifest_bytes_max=1, page_rows_max=4, page_rows_min=2, kept_entries_min=3)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tiered.toml").write_text(FILE.replace("HOME", str(tmp_path)))
    (tmp_path / "prices.json").write_text(json.dumps(PRICES))
    with opened(tmp_path, {"remote.storage.class": "GLACIER_IR"}) as manager:
        manager.topics.create("paged", 1, now_ms=NOW)
        fill(manager, "paged", 500)
    with opened(tmp_path) as manager:
        for name, settings in TOPICS.items():
            if name != "paged":
                manager.topics.create(name, 2 if name == "both" else 1, settings, now_ms=NOW)
        manager.topics.create("dropped", 1, now_ms=NOW)
        for name in (
            "cleaned",
            "dropped",
            "given-up",
            "giving-up",
            "here",
            "late",
            "paged",
            "paused",
            "sealed",
            "waiting",
        ):
            fill(manager, name, 160)
        fill(manager, "both", 80)
        fill(manager, "paged-and-gone", 900)
        manager.maintenance.delete_records(
            {TopicPartition("waiting", 0): 90, TopicPartition("paged-and-gone", 0): 450}, now_ms=NOW
        )
        manager.topics.alter("given-up", GIVEN_UP, now_ms=NOW)
        manager.topics.delete("dropped", now_ms=NOW)
        manager.pauses.pause(["paused"], now_ms=NOW)
        fill(manager, "paused", 90)
        send(manager, 150, topic="late")
        manager.partitions.roll("late", now_ms=NOW)
        for name in TOPICS:
            send(manager, 7, topic=name)
        manager.topics.alter("giving-up", GIVEN_UP, now_ms=NOW)
        held = manager.partitions.find(TopicPartition("giving-up", 0))  # its entries are not unlinked yet
        held.metadata.commit(disable_tier(log_start_offset=held.log.local_log_start_offset, now_ms=NOW), NOW)
    restored = "restore branch --local none --take-over --to data --yes"
    for words in ("view build cleaned", "fork both branch --yes", restored):
        assert invoke(["-q", *words.split()]) == 0, words
    monkeypatch.setattr(time, "time_ns", lambda: LATER * 1_000_000)
    return tmp_path


def opened(home: Path, settings: dict[str, str] | None = None, **more: bool) -> LogManager:
    """A manager over the directory, as a bucket that accepts every storage class."""
    config = Config.load(str(home / "tiered.toml"), settings or {})
    return LogManager.open(config, now_ms=NOW, store=open_store(str(config.remote_url)), **more)


def fill(manager: LogManager, topic: str, count: int) -> None:
    send(manager, count, topic=topic)
    manager.partitions.roll(topic, now_ms=NOW)
    settle(manager)


def test_every_source_reports_the_same_figures_as_the_stored_bytes(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: Seen = defaultdict(dict)

    def tell(window: str, place: object, figures: Mapping[str, object]) -> None:
        for figure, value in figures.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                assert window not in seen[str(place), figure], (window, place, figure)
                seen[str(place), figure][window] = value

    def asked(line: str, what: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert invoke([*line.split(), "-o", "json"]) == 0, line
        body = json.loads(capfd.readouterr().out)
        tell(line, "*", {"kept_dollars": body.get("now_dollars_per_month"), "local_bytes": body.get("now_disk_bytes")})
        return cast(list[dict[str, Any]], body[what])

    _by_hand(home, tell)
    _looks(asked, tell)
    _bills(asked, tell)
    with opened(home, read_only=True) as manager:
        _metrics(manager, tell)
        _pages(manager, tell)
        _kept(manager, tell)
        paged, gone = (
            manager.partitions.find(TopicPartition(name, 0)).manifest() for name in ("paged", "paged-and-gone")
        )
        assert any(page.other_classes for page in paged.pages), (
            "some manifest pages must have entries of another storage class"
        )
        assert manager.partitions.find(TopicPartition("giving-up", 0)).manifest().tier_disabled
        assert gone.pending_page_deletes, "a manifest page must have been unlinked as a whole"
    _bucket_alone(home, tell)
    _sums(seen, tell)
    apart = {at: told for at, told in seen.items() if max(told.values()) - min(told.values()) > 1e-4}
    assert not apart, "\n".join(f"{place} {figure}: {told}" for (place, figure), told in sorted(apart.items()))
    for place, figure in IS_THERE:
        assert min(seen[place, figure].values()) > 0, (place, figure)
    for figure, windows_min in LOOKED_AT_BY.items():  # sources without this figure are ignored
        found = {window for (_, each), told in seen.items() if each == figure for window in told}
        assert len(found) >= windows_min, (figure, found)


def _by_hand(home: Path, tell: Tell) -> None:
    for directory in (home / "data").iterdir():
        name = parse_partition_directory(directory.name)
        if name is not None:
            logs = [each.stat().st_size for each in directory.glob("*.log")]
            files = sum(each.stat().st_size for each in directory.iterdir())
            tell("disk", name, {"local_bytes": sum(logs), "local_segments": len(logs), "files_bytes": files})
    objects = Counter[str]()
    for path in (home / "bucket").rglob("*"):
        directory_name, *rest = path.relative_to(home / "bucket").parts
        topic = directory_name[: -len("-") - 22]
        if path.is_file() and rest[1:3] not in (["meta", "head"], ["meta", "pin"]):
            objects[topic] += path.stat().st_size
    objects["branch"] += objects["both"]  # the fork names objects of the other topic
    for topic, size in objects.items():
        tell("bucket", "dropped (deleted)" if topic == "dropped" else topic, {"objects_bytes": size})


def _looks(asked: Asked, tell: Tell) -> None:
    for row in asked("status", "topics"):
        tell("status", row["topic"], _of_status(row))
    for row in asked("status -p", "partitions"):
        tell("status -p", f"{row['topic']}/{row['partition']}", _of_status(row))
    for topic in (*TOPICS, "branch"):
        for row in asked(f"topic describe {topic}", "partitions"):
            tell("topic describe", f"{topic}/{row['partition']}", {**row, "partition": None})
    for spec, figure, plus in OFFSETS:
        for row in asked(f"get-offsets --time {spec}", "offsets"):
            if row["offset"] is not None:
                tell(f"get-offsets {spec}", f"{row['topic']}/{row['partition']}", {figure: row["offset"] + plus})
    for row in asked("log-dirs -p", "partitions"):
        tell("log-dirs", f"{row['topic']}/{row['partition']}", {"files_bytes": row["size_bytes"]})
    for row in asked("compaction status", "partitions"):
        whole = sum(row[f"{each}_bytes"] for each in ("clean", "cleanable", "uncleanable"))
        tell("compaction status", f"{row['topic']}/{row['partition']}", {"local_bytes": whole})
    for row in asked(f"remote ls {Path('bucket').resolve().as_uri()}", "partitions"):
        figures = {"remote_segments": row["segments"], "remote_bytes": row["size_bytes"]}
        figures |= {"log_start_offset": row["log_start_offset"], "remote_next_offset": row["next_offset"]}
        tell("remote ls", f"{row['topic']}/{row['partition']}", figures)


def _bills(asked: Asked, tell: Tell) -> None:
    for row in asked("cost show", "topics"):
        kept = sum(row[f"{kind}_dollars"] for kind in ("storage", "index", "waiting"))
        figures = {name: row[name] for name in ("local_bytes", *(f"{kind}_dollars" for kind in KINDS))}
        tell("cost show", row["topic"], {**figures, "kept_dollars": kept, "stored_bytes": row["remote_bytes"]})
    planned: dict[str, Counter[str]] = defaultdict(Counter)
    for row in asked("plan", "decisions"):
        if (figure := DECIDED.get(row["decision"])) is not None:
            planned[f"{row['topic']}/{row['partition']}"][figure] += row["size_bytes"]
    for place, sums in planned.items():
        tell("decisions", place, sums)
    for topic in (*TOPICS, "branch"):
        for row in asked(f"topic delete {topic} --dry-run", "partitions"):
            figures = {"at_risk_bytes": row["only_local_bytes"], "log_bytes_stored": row["remote_bytes"]}
            figures |= {name: row[name] for name in ("log_start_offset", "next_offset", "local_bytes")}
            tell("topic delete --dry-run", f"{topic}/{row['partition']}", figures)


def _metrics(manager: LogManager, tell: Tell) -> None:
    dollars: dict[str, Counter[str]] = defaultdict(Counter)
    for each in Metrics(manager, Observations(), by_partition=True).samples(LATER):
        labels = dict(each.labels)
        if each.name in GAUGES:
            tell("metrics", f"{labels['topic']}/{labels['partition']}", {GAUGES[each.name]: each.value})
        if each.name == "tiered_cost_dollars_per_month":
            dollars[labels["topic"]][f"{labels['kind']}_dollars"] = each.value
    for topic, kinds in dollars.items():
        kept = sum(value for name, value in kinds.items() if name != "disk_dollars")
        tell("metrics", topic, {**kinds, "kept_dollars": kept})


def _pages(manager: LogManager, tell: Tell) -> None:
    site = Site(manager, lambda: LATER, deadline_s=60)

    def page(path: str) -> dict[str, Any]:
        status, _, body = site.answer(f"{path}?format=json")
        assert status == HTTPStatus.OK, (path, body)
        return cast(dict[str, Any], json.loads(body))

    assert page("/")["deleted_topics"] == ["dropped"]
    assert "Objects of 1 deleted topic in the bucket still cost money" in site.answer("/")[2]
    for row in page("/")["topics"]:
        tell("overview", row["topic"], _of_status(row))
    for topic in (*TOPICS, "branch"):
        for row in page(f"/topics/{topic}")["partitions"]:
            tell("page of the topic", f"{topic}/{row['partition']}", _of_status(row))
    planned = page("/plan")
    figures = {"kept_dollars": planned["now_dollars_per_month"], "local_bytes": planned["now_disk_bytes"]}
    tell("page of the plan", "*", figures)


def _kept(manager: LogManager, tell: Tell) -> None:
    """Bytes behind the cost figures, notes over time, and the segments moved by the advice."""
    prices = configured_prices(manager.config)
    for name, lying in all_usage(manager, prices).items():
        manifest = manager.partitions.find(name).manifest()
        assert manifest is not None
        data = sum(each.size_bytes for each in lying.data.values())
        views = sum(row.stored_bytes + row.indexes_bytes for row in manifest.view_entries)
        log = data + lying.small_bytes - views if not manifest.tier_disabled else 0
        pages = sum(page.page_bytes for page in manifest.pages)
        whole = data + lying.small_bytes + lying.waiting_bytes + pages
        figures = {"stored_bytes": data, "log_bytes_stored": log, "objects_bytes": whole}
        tell("kept", name, {**figures, "unlinked_bytes": lying.waiting_bytes})
    for each in manager.topics.deleted_partitions():
        assert each.manifest is not None
        found = usage_of_deleted(each.manifest, prices)
        pages = sum(page.page_bytes for page in each.manifest.pages)
        tell("kept", "dropped (deleted)", {"objects_bytes": found.waiting_bytes + pages})
    total, points = points_now(manager, LATER)
    for place, point in {"*": total, **points}.items():
        figures = {name: getattr(point, name) for name in ("local_bytes", "remote_bytes", "lag_bytes", "at_risk_bytes")}
        tell("notes", place, {**figures, "kept_dollars": point.dollars_per_month})
    for topic in set(TOPICS) - {"cleaned"}:  # a view is not part of the topic's segments
        tell(
            "advice",
            topic,
            {"stored_bytes": sum(each.stored_bytes for each in stored_segments_of(manager, topic, LATER))},
        )


def _bucket_alone(home: Path, tell: Tell) -> None:
    """Figures of the segment table of the Spark source."""
    store = keyed_store(open_store((home / "bucket").as_uri()), None)
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for name in list_partitions(store):
        for row in segment_rows(MetadataLog(store, name.prefix), name, TableOptions(now_ms=LATER)):
            size = int(str(row["stored_bytes"])) + int(str(row["indexes_bytes"] or 0))
            place = "dropped (deleted)" if row["topic_deleted"] else name.topic
            sums[place]["objects_bytes"] += size
            if row["kind"] in ("log", "view") and row["topic_deleted"] is None:
                sums[place]["stored_bytes"] += int(str(row["stored_bytes"]))
            if row["kind"] == "log" and row["is_readable"]:
                sums[place]["remote_bytes"] += int(str(row["size_bytes"]))
                sums[place]["remote_segments"] += 1
    store.close()
    for place, figures in sums.items():
        tell("segments as a table", place, figures)


def _sums(seen: Seen, tell: Tell) -> None:
    """A topic is the sum of its partitions, and `*` is the sum of the topics."""
    topics = (*TOPICS, "branch")
    partitions = {f"{topic}/{number}": topic for topic in topics for number in (0, 1)}
    for wanted, window in ((partitions, "sum of partitions"), (dict.fromkeys(topics, "*"), "sum of topics")):
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for (place, figure), told in seen.items():
            if place in wanted and figure not in NO_SUMS:
                sums[wanted[place]][figure] += next(iter(told.values()))
        for place, figures in sums.items():
            tell(window, place, figures)


def _of_status(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **dict.fromkeys(("partition", "partitions", "offsets")), "kept_dollars": row["dollars_per_month"],
            "dollars_per_month": None}  # fmt: skip
