"""`tiered bench`: every measurement has a reference, and all temporary data is deleted at the end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fault_store import Fault, FaultStore
from json_schemas import SCHEMAS

from local.errors import InvalidRequest, LogError
from remote.store.memory_store import MemoryStore
from tiered.bench import benchmark
from tiered.bench.benchmark import BenchOptions, Measured, percentiles_ms, predict_requests, run_benchmark
from tiered.cli.main import invoke

NOW = 1_800_000_000_000
SMALL = BenchOptions(size_bytes=1 << 20, fsyncs=4, lookups=20, cold_reads=2)
NAMES = (
    *("fsync", "append, fsync each", "append, shared fsync", "append in bulk", "read in order", "index lookup"),
    *("compaction", "upload", "ranged reads", "cold random read"),
)


def test_benchmark_reports_measurements_with_references_and_deletes_its_files(tmp_path: Path) -> None:
    ticks = itertools.count()
    report = run_benchmark(str(tmp_path), now_ms=NOW, options=SMALL, clock=lambda: next(ticks) / 4)
    assert tuple(each.name for each in report.measured) == NAMES
    assert report.is_complete
    assert report.requests is None
    for each in report.measured:
        assert each.count > 0
        assert each.size_bytes > 0
        assert each.seconds > 0
        assert (each.ratio is None) == (each.name == "fsync")
    assert [{**each.latencies_ms} for each in report.measured if each.name == "upload"] == [{}]
    timed = {each.name for each in report.measured if each.latencies_ms}
    assert timed == {"fsync", "append, fsync each", "index lookup", "cold random read"}
    bulk, read, up, ranged = (
        next(e for e in report.measured if e.name == name) for name in (NAMES[3], NAMES[4], *NAMES[7:9])
    )
    assert bulk.size_bytes == read.size_bytes > SMALL.size_bytes // 2
    assert up.size_bytes == ranged.size_bytes > SMALL.size_bytes // 2
    assert list(tmp_path.iterdir()) == []


def test_ratio_throughput_and_percentiles_follow_from_the_measured_times() -> None:
    measured = Measured(name="x", what="", reference="", count=4, size_bytes=100, seconds=2.0, reference_seconds=1.0)
    assert (measured.ratio, measured.bytes_per_second, measured.ms_each) == (0.5, 50.0, 500.0)
    assert percentiles_ms([]) == {}
    hundred = [each / 1000 for each in range(1, 101)]
    assert percentiles_ms(hundred) == pytest.approx({"p50": 51, "p90": 91, "p99": 100, "max": 100})


@pytest.mark.parametrize("stop_after", [0, 1, 5, 7, 8, 9, 10])
def test_cancelled_benchmark_reports_finished_measurements_and_deletes_everything(
    tmp_path: Path, stop_after: int
) -> None:
    store, seen = MemoryStore(), list[str]()
    report = run_benchmark(
        str(tmp_path),
        now_ms=NOW,
        options=SMALL,
        store=store,
        on_measured=lambda each: seen.append(each.name),
        should_stop=lambda: len(seen) >= stop_after,
    )
    assert tuple(each.name for each in report.measured) == NAMES[:stop_after]
    assert not report.is_complete or stop_after == len(NAMES)
    assert list(store.list("")) == []
    assert list(tmp_path.iterdir()) == []


def test_benchmark_leaves_no_objects_or_files_after_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store fault before or after every fourth call leaves no objects behind.
    Faults of the clean-up's own calls (`list`, `delete`) are exempt: they are raised."""
    monkeypatch.setattr(benchmark, "measure_disk", lambda bench: None)
    clean = FaultStore(MemoryStore())
    run_benchmark(str(tmp_path), now_ms=NOW, options=SMALL, store=clean)
    met = 0
    for at in range(0, len(clean.calls), 4):
        inner = MemoryStore()
        store = FaultStore(inner, at, Fault.AFTER if at % 8 else Fault.BEFORE)
        try:
            run_benchmark(str(tmp_path), now_ms=NOW, options=SMALL, store=store)
        except LogError:
            met += 1
        # a run may need one call fewer than the first run
        if at < len(store.calls) and store.calls[at] not in ("list", "delete"):
            assert list(inner.list("")) == [], (at, store.calls[at])
        assert list(tmp_path.iterdir()) == []
    assert met > 3


def test_benchmark_sends_the_predicted_number_of_requests(tmp_path: Path) -> None:
    told = predict_requests(now_ms=NOW, options=SMALL)
    real = run_benchmark(str(tmp_path), now_ms=NOW, options=SMALL, store=MemoryStore("s3://bucket/prefix")).requests
    assert real is not None
    assert (real.puts, real.deletes) == (told.puts, told.deletes)
    assert real.bytes_in == pytest.approx(told.bytes_in, rel=0.001)  # the lengths of the names in a manifest vary
    assert abs(real.gets - told.gets) <= 4  # the number of prefetched ranges depends on thread timing
    assert abs(real.lists - told.lists) <= 2


@pytest.mark.parametrize("size", [1000, 1 << 41])
def test_benchmark_refuses_a_size_that_is_too_small_or_too_large(tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidRequest):
        BenchOptions.of(size)
    with pytest.raises(InvalidRequest, match="the size is out of range"):
        run_benchmark(str(tmp_path), now_ms=NOW, options=BenchOptions(size_bytes=size))
    assert list(tmp_path.iterdir()) == []


def test_benchmark_refuses_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        run_benchmark(str(tmp_path / "nowhere"), now_ms=NOW, options=SMALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["-q", "init"]) == 0
    assert invoke(["-q", "topic", "create", "orders"]) == 0
    return tmp_path


def everything(home: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in home.rglob("*")}


def test_bench_command_prints_its_json_schema_and_leaves_the_directory_unchanged(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = everything(home)
    for words, requests in (([], False), (["--remote", "--yes"], True)):
        capfd.readouterr()
        assert invoke(["bench", "--size", "1MiB", *words, "-o", "json"]) == 0
        body = capfd.readouterr().out
        found = msgspec.json.decode(body, type=SCHEMAS["bench"])
        assert (found.requests is not None) == requests  # type: ignore[attr-defined]
        assert everything(home) == before
    assert invoke(["bench", "--size", "1MiB"]) == 0
    assert "cold random read" in capfd.readouterr().out
    (home / "bare").mkdir()
    assert invoke(["-C", "bare", "bench", "--size", "1MiB"]) == 0
    assert list((home / "bare").iterdir()) == []


def test_bench_remote_shows_its_requests_first_and_needs_yes_to_send_them(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(home)
    capfd.readouterr()
    assert invoke(["bench", "--size", "1MiB", "--remote", "--dry-run", "-o", "json"]) == 0
    printed = capfd.readouterr()
    (row,) = json.loads(printed.out)["requests"]
    assert row["puts"] > 5
    assert row["dollars"] > 0
    assert "nothing changed" in printed.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert invoke(["bench", "--size", "1MiB", "--remote"]) == 2
    assert "add --yes" in capfd.readouterr().err
    assert invoke(["-X", "remote.immutable=true", "bench", "--remote", "--yes"]) == 2
    assert invoke(["-C", "nowhere", "bench", "--remote", "--yes"]) == 1
    assert invoke(["bench", "--size", "7 days"]) == 2
    assert everything(home) == before


def test_bench_interrupted_by_ctrl_c_deletes_everything(home: Path) -> None:
    """A real process is interrupted after its first measurements."""
    before = everything(home)
    words = [sys.executable, "-m", "tiered", "bench", "--size", "64MiB", "--remote", "--yes"]
    with subprocess.Popen(words, cwd=home, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "measured: append, fsync each" in line:
                break
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(60) == 130
    assert "interrupted; all created files and objects were deleted" in told
    assert everything(home) == before
