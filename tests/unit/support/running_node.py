"""``tiered run --kafka`` in a process of its own, which a test may kill."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 120


@contextmanager
def running(home: Path, port: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port; port 0: any free port. Killed at the end."""
    words = ["-m", "tiered", "-C", str(home), "run", "--interval", "100ms", "--kafka", f"127.0.0.1:{port}", *options]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        line = next(each for each in lines if "serving Kafka clients at" in each)
        drain = threading.Thread(target=lambda: [None for _ in lines], daemon=True)
        drain.start()
        yield process, int(line.rsplit(":", 1)[1])
    finally:
        process.kill()
        process.wait()
        drain.join(LIMIT_S)
        process.stderr.close()
