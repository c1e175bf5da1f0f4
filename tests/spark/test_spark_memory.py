"""Gigabytes of data through an executor of half a gigabyte: no job needs memory that grows with the data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_profile import SPARK_HEAPS

pytestmark = pytest.mark.spark

VALUE_BYTES = 16_000
ROWS = SPARK_HEAPS * 30_000  # values of as many heaps as the profile says
KEYS = ROWS * 5 // 12


@pytest.mark.deep("an executor with more data than its heap")
@pytest.mark.timeout(600)
def test_jobs_over_more_data_than_the_executor_heap_stay_within_the_memory_limit(file_bucket):
    script = Path(__file__).with_name("memory_job.py")
    words = [sys.executable, script, file_bucket.url, *map(str, (ROWS, VALUE_BYTES, KEYS))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    read = [ROWS, ROWS * VALUE_BYTES, sum(range(ROWS)), f"{ROWS - 1:012d}"]
    left = [KEYS, KEYS * VALUE_BYTES, sum(range(ROWS - KEYS, ROWS)), f"{ROWS - 1:012d}"]
    assert found["heap_bytes"] * SPARK_HEAPS <= ROWS * VALUE_BYTES < (SPARK_HEAPS + 1) * found["heap_bytes"]
    assert (found["source"], found["arrow"], found["left"]) == (read, read, left)
    assert found["compacted"] == [ROWS, KEYS]
