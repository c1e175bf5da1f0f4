"""`tiered bench --remote` predicts the requests that an S3 server receives."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.store.open_store import open_store
from tiered.bench import benchmark
from tiered.bench.benchmark import BenchOptions, predict_requests, run_benchmark
from tiered.demo.s3_endpoint import S3Endpoint

NOW = 1_800_000_000_000
SMALL = BenchOptions(size_bytes=2 << 20, fsyncs=4, lookups=20, cold_reads=2)


def test_a_benchmark_sends_as_many_puts_and_deletes_as_predicted(
    tmp_path: Path, s3_endpoint: S3Endpoint, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "measure_disk", lambda bench: None)
    told = predict_requests(now_ms=NOW, options=SMALL)
    store = open_store(f"s3://{s3_bucket}/bench", s3_endpoint.options())
    sent = run_benchmark(str(tmp_path), now_ms=NOW, options=SMALL, store=store).requests
    assert sent is not None
    assert (sent.puts, sent.posts, sent.deletes) == (told.puts, told.posts, told.deletes)
    assert list(store.list("")) == []
    store.close()
