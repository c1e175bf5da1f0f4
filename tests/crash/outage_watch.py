"""Measurements of a daemon from outside, every ten seconds: its resources, its log and its status."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

from real_daemon import Daemon

EVERY_S = 10.0  # interval of the measurements
BACK_LIMIT_S = 900.0
LEVEL = re.compile(r"^\d{4}-\d\d-\d\d \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) ", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Look:
    """One measurement of the daemon; counts are since its start."""

    at_s: float
    phase: str
    rss_mb: float
    threads: int
    fds: int
    cpu_s: float
    log_bytes: int
    lines: dict[str, int]
    health: int
    health_s: float
    trouble: str
    calls: float
    requests: float
    lag_segments: float
    lag_s: float
    at_risk_mb: float
    overdue_s: float
    left: float


@dataclass(slots=True)
class Watch:
    """Measures a daemon; each measurement is a line of `place`."""

    daemon: Daemon
    place: Path
    begun: float = field(default_factory=time.monotonic)
    looks: list[Look] = field(default_factory=list)
    _read: int = 0
    _lines: Counter[str] = field(default_factory=Counter)

    def look(self, phase: str) -> Look:
        pid = self.daemon.process.pid
        assert self.daemon.process.poll() is None, f"the daemon ended: {self.daemon.words[-4000:]}"
        status = Path(f"/proc/{pid}/status").read_text()
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        with self.daemon.said.open() as said:
            said.seek(self._read)
            words = said.read()
            self._read = said.tell()
        self._lines.update(LEVEL.findall(words))
        begun = time.monotonic()
        health, told = self.daemon.ask("health")
        took = time.monotonic() - begun
        sums: dict[str, float] = defaultdict(float)
        for line in self.daemon.ask("metrics")[1].splitlines():
            if not line.startswith("#"):
                sample, value = line.split()
                name = sample.partition("{")[0]
                sums[name] = max(sums[name], float(value)) if name.endswith("_seconds") else sums[name] + float(value)
        found = Look(
            at_s=round(begun - self.begun, 1),
            phase=phase,
            rss_mb=round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1),
            threads=int(status.partition("Threads:")[2].split()[0]),
            fds=len(os.listdir(f"/proc/{pid}/fd")),
            cpu_s=(int(stat[11]) + int(stat[12])) / TICKS,
            log_bytes=self._read,
            lines=dict(self._lines),
            health=health,
            health_s=round(took, 3),
            trouble="" if health == 200 else told,
            calls=sums["tiered_objstore_operations_total"],
            requests=sums["tiered_objstore_billed_requests_total"],
            lag_segments=sums["tiered_remote_copy_lag_segments"],
            lag_s=sums["tiered_remote_copy_lag_seconds"],
            at_risk_mb=round(sums["tiered_unreplicated_bytes"] / 1e6, 2),
            overdue_s=sums["tiered_remote_delete_overdue_seconds"],
            left=sums["tiered_remote_left_objects_total"],
        )
        self.looks.append(found)
        with self.place.open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        return found

    def during(self, phase: str, minutes: float) -> None:
        until = time.monotonic() + 60 * minutes
        while (left := until - time.monotonic()) > 0:
            self.look(phase)
            time.sleep(min(EVERY_S, left))

    def until_well(self, phase: str) -> float:
        """Seconds until every closed segment is in the bucket and /health is 200."""
        begun = time.monotonic()
        while time.monotonic() - begun < BACK_LIMIT_S:
            found = self.look(phase)
            if found.lag_segments == 0 and found.health == 200:
                return time.monotonic() - begun
            time.sleep(1)
        raise AssertionError(f"not well {BACK_LIMIT_S:.0f} s after the bucket was back: {self.looks[-1]}")

    def of(self, phase: str) -> list[Look]:
        return [each for each in self.looks if each.phase == phase]
