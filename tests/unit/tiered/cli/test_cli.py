"""The commands on a small directory with a bucket on disk: output in every format."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered.cli.main import invoke


@pytest.fixture
def home(tmp_path: Path, monkeypatch, capfd) -> Path:
    """Two partitions with a hundred records of the last hour in small segments, none of them copied yet."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    create = ["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB", "-X", "local.retention.ms=1"]
    assert invoke(create) == 0
    begin_ms = int(time.time() * 1000) - 3_600_000  # young: the commands use the real time
    lines = [{"key": f"k{at}", "value": f"value {at}", "timestamp": begin_ms + at} for at in range(100)]
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert invoke(["append", "orders", "lines", "--jsonl", "--batch", "10"]) == 0
    capfd.readouterr()
    return tmp_path


def printed(capfd, *words: str) -> str:
    capfd.readouterr()
    assert invoke(list(words)) == 0
    return capfd.readouterr().out


def keys(text: str) -> list[str]:
    return sorted(text.split(), key=lambda key: int(key[1:]))


def test_append_reports_the_offsets_of_its_records(home: Path, capfd) -> None:
    out = printed(capfd, "append", "orders/1", "lines", "--jsonl", "-o", "jsonl")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (row["partition"], row["records"], row["next_offset"] - row["base_offset"]) == (1, 100, 100)


def test_consume_reads_every_record_before_and_after_its_copy_to_the_bucket(home: Path, capfd) -> None:
    everything = [f"k{at}" for at in range(100)]
    assert keys(printed(capfd, "consume", "orders", "-f", "%k\\n")) == everything
    printed(capfd, "-q", "run", "--once")
    (row,) = json.loads(printed(capfd, "status", "-o", "json"))["topics"]
    assert row["remote_bytes"] > 0
    assert (row["local_bytes"], row["lag_bytes"], row["at_risk_bytes"]) == (0, 0, 0)
    assert keys(printed(capfd, "consume", "orders", "-f", "%k\\n")) == everything
    assert keys(printed(capfd, "consume", "orders", "--remote", f"file://{home}/bucket", "-f", "%k\\n")) == everything


def test_plan_shows_decisions_with_reasons_and_changes_nothing(home: Path, capfd) -> None:
    first = printed(capfd, "plan", "-o", "json")
    assert printed(capfd, "plan", "-o", "json") == first
    body = json.loads(first)
    assert body["schema_version"] == 1
    assert {row["decision"] for row in body["decisions"]} == {"CopySegment"}
    fields = {"what", "size_bytes", "reason", "decision", "topic", "partition", "puts", "dollars", "dollars_per_month"}
    assert fields <= set(body["decisions"][0])
    table = printed(capfd, "plan", "--summary")
    assert table.splitlines()[1].split()[:2] == ["+", "upload"]


def test_plan_with_other_settings_shows_other_decisions(home: Path, capfd) -> None:
    printed(capfd, "-q", "run", "--once")
    assert json.loads(printed(capfd, "plan", "-o", "json"))["decisions"] == []
    what_if = printed(capfd, "plan", "-X", "retention.ms=1", "-X", "local.retention.ms=1", "-o", "jsonl")
    kinds = [json.loads(line)["decision"] for line in what_if.splitlines()]
    assert kinds.count("ExpireRemote") > 0


def test_table_without_a_terminal_has_no_escape_codes(home: Path, capfd) -> None:
    for words in (["status"], ["status", "-p"], ["plan"], ["topic", "list"], ["topic", "describe", "orders"]):
        table = printed(capfd, *words)
        assert "\x1b" not in table
        assert all(line == line.rstrip() for line in table.splitlines())


def test_json_has_raw_numbers_and_a_schema_version_and_csv_the_same_fields(home: Path, capfd) -> None:
    body = json.loads(printed(capfd, "status", "-p", "-o", "json"))
    assert body["schema_version"] == 1
    assert all(isinstance(row["local_bytes"], int) for row in body["partitions"])
    rows = list(csv.DictReader(io.StringIO(printed(capfd, "status", "-p", "-o", "csv"))))
    assert list(rows[0]) == list(body["partitions"][0])


def test_topic_describe_shows_the_origin_of_each_setting(home: Path, capfd) -> None:
    out = printed(capfd, "-X", "segment.ms=1h", "topic", "describe", "orders", "--settings", "-o", "json")
    origins = {row["property"]: row["origin"] for row in json.loads(out)["settings"]}
    assert (origins["segment.ms"], origins["segment.bytes"]) == ("-X", "topic orders")
    assert origins["remote.storage.enable"].endswith("tiered.toml [defaults]")


def test_topic_alter_sets_and_removes_settings(home: Path, capfd) -> None:
    printed(capfd, "topic", "alter", "orders", "-X", "segment.bytes=", "-X", "retention.ms=9d")
    (row,) = json.loads(printed(capfd, "topic", "list", "-o", "json"))["topics"]
    assert row["settings"] == {"local.retention.ms": "1", "retention.ms": "9d"}


def test_topic_add_partitions_raises_the_number_and_a_dry_run_only_shows_it(home: Path, capfd) -> None:
    (before,) = json.loads(printed(capfd, "topic", "list", "-o", "json"))["topics"]
    (planned,) = json.loads(printed(capfd, "topic", "add-partitions", "orders", "5", "--dry-run", "-o", "json"))[
        "topics"
    ]
    assert planned == {**before, "partitions": 5}
    assert json.loads(printed(capfd, "topic", "list", "-o", "json"))["topics"] == [before]
    printed(capfd, "topic", "add-partitions", "orders", "5")
    assert json.loads(printed(capfd, "topic", "list", "-o", "json"))["topics"] == [planned]
    assert invoke(["topic", "add-partitions", "orders", "5"]) == 2
    assert "not in 6..10000" in capfd.readouterr().err


def test_consume_starts_at_the_given_position(home: Path, capfd) -> None:
    def offsets(start: str, *more: str) -> list[int]:
        return [
            int(text) for text in printed(capfd, "consume", "orders/0", "--from", start, "-f", "%o ", *more).split()
        ]

    every = offsets("start")
    assert every == list(range(len(every)))
    assert offsets("5") == every[5:]
    assert offsets("-3") == every[-3:]
    assert offsets("-999") == every
    assert offsets("end") == []
    assert offsets("start", "-n", "2") == [0, 1]
    times = [int(text) for text in printed(capfd, "consume", "orders/0", "-f", "%t ").split()]
    assert offsets(f"@{times[7]}") == every[7:]
    assert offsets("@2999-01-01") == []


def test_append_reads_the_json_that_consume_prints(home: Path, capfd) -> None:
    lines = [
        {"key": None, "value": {"base64": "/w=="}, "headers": [{"key": "h", "value": None}]},
        {"key": "k", "value": None},
        {"key": "", "value": ""},
    ]
    (home / "odd").write_text("".join(json.dumps(line) + "\n" for line in lines))
    printed(capfd, "topic", "create", "odd")
    printed(capfd, "append", "odd/0", "odd", "--jsonl")
    first = [json.loads(line) for line in printed(capfd, "consume", "odd", "-o", "jsonl").splitlines()]
    assert [(row["key"], row["value"]) for row in first] == [(None, {"base64": "/w=="}), ("k", None), ("", "")]
    assert first[0]["headers"] == [{"key": "h", "value": None}]
    (home / "again").write_text("".join(json.dumps(row) + "\n" for row in first))
    printed(capfd, "append", "odd/0", "again", "--jsonl")
    again = [json.loads(line) for line in printed(capfd, "consume", "odd", "--from", "3", "-o", "jsonl").splitlines()]
    assert [{**row, "offset": row["offset"] - 3} for row in again] == first


def test_empty_value_is_a_tombstone_only_with_the_option(home: Path, capfd) -> None:
    (home / "kv").write_text("a:1\r\nb:\nc")
    printed(capfd, "topic", "create", "kv")
    assert invoke(["append", "kv", "kv", "-K", ":"]) == 2, "the last line has no key"
    assert printed(capfd, "consume", "kv", "-f", "%k %v %S\\n") == "a 1 1\nb  0\n", (
        "the lines before the faulty one are appended"
    )
    (home / "kv").write_text("a:1\r\nb:\n")
    for flags in ([], ["-Z"]):
        printed(capfd, "append", "kv", "kv", "-K", ":", *flags)
    assert printed(capfd, "consume", "kv", "--from", "2", "-f", "%k %v %S\\n") == "a 1 1\nb  0\na 1 1\nb  -1\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_append_compresses_with_the_given_codec_and_dump_shows_it(home: Path, capfd, codec: str) -> None:
    printed(capfd, "topic", "create", "packed")
    printed(capfd, "append", "packed", "lines", "--jsonl", "--compression", codec)
    rows = json.loads(printed(capfd, "dump", "packed/0", "-o", "json"))["batches"]
    assert {row["compresscodec"] for row in rows} == {"none" if codec == "uncompressed" else codec}
    assert sum(row["count"] for row in rows) == 100


def test_dump_reads_segment_files_and_partitions(home: Path, capfd) -> None:
    (log, *_) = sorted((home / "data" / "orders-0").glob("*.log"))
    from_file = json.loads(printed(capfd, "dump", str(log), "-o", "json"))["batches"]
    whole = json.loads(printed(capfd, "dump", "orders/0", "-o", "json"))["batches"]
    assert from_file[0] | {"position": None} == whole[0]
    assert from_file[0]["position"] == 0
    records = [json.loads(line) for line in printed(capfd, "dump", "orders/0@3", "--records", "-n", "4").splitlines()]
    assert len(records) == 4
    assert printed(capfd, "dump", str(log), "--records").count("\n") == sum(row["count"] for row in from_file)
    for suffix in (".index", ".timeindex"):
        printed(capfd, "dump", str(log.with_suffix(suffix)))


@pytest.mark.parametrize("output", ["jsonl", "csv"])
def test_dump_prints_each_run_of_batches_as_it_is_read(home: Path, capfd, monkeypatch, output: str) -> None:
    from tiered.read.reader import TieredReader

    batches, out = TieredReader.batches, []

    def noticed(*words: object) -> Iterator[memoryview]:
        for run in batches(*words):  # type: ignore[arg-type]
            yield run
            sys.stdout.flush()
            out.append(capfd.readouterr().out)

    monkeypatch.setattr(TieredReader, "batches", noticed)
    assert invoke(["dump", "orders/0", "-o", output]) == 0
    assert len(out) > 1
    assert all(out), "rows must be printed before the next run is read"


@pytest.mark.parametrize("name", ["d#1", "50%20off", "a b", "é", "q?x"])
def test_directory_may_have_special_characters_in_its_name(home: Path, capfd, name: str) -> None:
    assert invoke(["init", name]) == 0
    err = capfd.readouterr().err
    assert f"next: tiered -C {shlex.quote(name)} topic create" in err
    assert invoke(["-C", name, "topic", "create", "t"]) == 0
    (home / "line").write_text("v\n")
    assert invoke(["-C", name, "append", "t", "line"]) == 0
    assert [each for each in os.listdir(home / name / "bucket") if each.startswith("t-")]
    url = (home / name / "bucket").as_uri()
    assert f'"{url}"' in (home / name / "tiered.toml").read_text()
    capfd.readouterr()
    assert invoke(["consume", "t", "--remote", url]) == 0


def test_init_refuses_a_directory_name_that_is_not_utf8(home: Path, capfd) -> None:
    assert invoke(["init", os.fsdecode(b"\xff")]) == 2
    assert "not UTF-8" in capfd.readouterr().err
    assert not (home / os.fsdecode(b"\xff")).exists()


def test_init_writes_no_file_when_the_store_cannot_be_used(home: Path, capfd) -> None:
    assert invoke(["init", "other", "--remote", "file:///no/such/place"]) == 1
    assert not (home / "other").exists()
    assert invoke(["init", "other", "--remote", "s3://bucket/x", "--no-probe", "--option", "profile=prod"]) == 0
    text = (home / "other" / "tiered.toml").read_text()
    assert 'url = "s3://bucket/x"\noptions = { "profile" = "prod" }' in text


def test_read_committed_reads_from_a_directory_and_from_a_bucket(home: Path, capfd) -> None:
    out = printed(capfd, "consume", "orders", "-f", "%v\\n", "--isolation", "read_committed")
    assert sorted(out.split("\n")) == sorted(printed(capfd, "consume", "orders", "-f", "%v\\n").split("\n"))
    assert invoke(["run", "--once"]) == 0
    bucket = ("consume", "orders", "--remote", f"file://{home}/bucket", "-f", "%v\\n")
    tiered = printed(capfd, *bucket)
    assert tiered.count("value") > 50
    assert printed(capfd, *bucket, "--isolation", "read_committed") == tiered


def test_topic_create_of_several_topics_creates_all_or_none(home: Path, capfd) -> None:
    """If one of the names exists, none of the topics is created."""
    out = printed(capfd, "topic", "create", "a", "b", "c", "-p", "3", "-X", "retention.ms=1h", "-o", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["topic"], row["partitions"], row["settings"]) for row in rows] == [
        (name, 3, {"retention.ms": "1h"}) for name in ("a", "b", "c")
    ]
    assert invoke(["topic", "create", "d", "b"]) == 2
    assert "topic=b" in capfd.readouterr().err
    names = [json.loads(line)["topic"] for line in printed(capfd, "topic", "list", "-o", "jsonl").splitlines()]
    assert {"a", "b", "c"} <= set(names)
    assert "d" not in names
