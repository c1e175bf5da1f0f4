"""A real daemon without its bucket for an hour, or for the given minutes, under constant appends.

    python tests/crash/outage_campaign.py [--minutes 60] [--way REFUSED] [--before 3] [--after 3] [--home DIR]

1. `tiered run` works on its own schedules, and a thread inside it appends to five topics. The bucket is on an S3 server
   behind a gate (`outage_gate`), which is shut for the given time.
2. Every ten seconds the daemon is measured: memory, threads, files, CPU-seconds, log lines, requests, /health, copy
   lag.
3. The gate opens. Without help the daemon must copy every closed segment and become healthy.
4. At the end every acknowledged record must be readable in both tiers together and in the bucket alone. No orphan and
   no pending delete may be left. Memory, threads and open files must have fallen to their earlier level.

Otherwise the exit code is 1, and the failed expectations are printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "support"), str(HERE.parents[1])]

from bucket_truth import sound_roots  # noqa: E402
from outage_gate import Gate, Way  # noqa: E402
from outage_watch import Watch  # noqa: E402
from real_daemon import Daemon, Node  # noqa: E402

from local.names import TopicPartition  # noqa: E402
from tiered.demo.s3_endpoint import S3Endpoint  # noqa: E402
from tiered.tables.remote_tables import open_remote  # noqa: E402

APPEND_S = 1.0  # an append to each topic
RETENTION_MS = 15 * 60_000
KEYS = 40
SMALL = {"segment.bytes": "64KiB"}
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "5m"}
# Settings of the topic, and for each append: number of records, bytes of one record.
TOPICS: dict[str, tuple[dict[str, str], int, int]] = {
    "orders": (TIERED | SMALL, 20, 100),
    "short": (TIERED | SMALL | {"retention.ms": str(RETENTION_MS)}, 20, 100),
    "latest": (
        {"remote.storage.enable": "true", "local.retention.ms": "-1", "cleanup.policy": "compact"} | SMALL,
        20,
        100,
    ),
    "large": (TIERED | {"segment.bytes": "9MiB"}, 40, 1500),  # uploaded in parts
    "here": (SMALL, 20, 100),
}
COPIED = [name for name, (told, _, _) in TOPICS.items() if "remote.storage.enable" in told]
DEFAULTS = {"retention.ms": "-1", "remote.log.delete.grace.ms": "2m"}
# The unchanged daemon; a line on stdin ends the appends. Each acknowledgement is a line in the file of the environment.
PROGRAM = f"""
import os, sys, threading, time
from local.log.log import Durability
from local.format.record import Record
from tiered.cli.node import run as running
TOPICS = {[(name, count, size) for name, (_, count, size) in TOPICS.items()]!r}
ended = threading.Event()
def wait():
    sys.stdin.readline()
    ended.set()
def serve(manager):
    at = dict.fromkeys((name for name, _, _ in TOPICS), 0)
    with open(os.environ["OUTAGE_ACKS"], "w", buffering=1) as said:
        while not ended.wait({APPEND_S}):
            for topic, count, size in TOPICS:
                now_ms = time.time_ns() // 1_000_000
                first, at[topic] = at[topic], at[topic] + count
                records = [
                    Record(b"k%d" % (each % {KEYS}), (b"%s %d " % (topic.encode(), each)).ljust(size, b"."), now_ms)
                    for each in range(first, first + count)
                ]
                begun = time.perf_counter()
                try:
                    manager.append(topic, records, 0, now_ms=now_ms, durability=Durability.FLUSHED)
                    answer = "acked"
                except Exception as error:
                    answer = "refused:" + type(error).__name__
                print(topic, first, count, now_ms, int((time.perf_counter() - begun) * 1e6), answer, file=said)
        print("ended", file=said)
started = running._started
def _started(*words, **more):
    worker = started(*words, **more)
    threading.Thread(target=serve, args=(worker.manager,), daemon=True).start()
    threading.Thread(target=wait, daemon=True).start()
    return worker
running._started = _started
from tiered.cli.main import run
run(sys.argv[1:])
"""


@dataclass(slots=True)
class Appends:
    """The outcome of each append in the daemon, by topic."""

    acked: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # number: time of the append
    took_us: list[tuple[int, int]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, place: Path) -> Appends:
        told = cls()
        for line in place.read_text().splitlines()[:-1]:
            topic, first, count, at_ms, took_us, answer = line.split()
            told.took_us.append((int(at_ms), int(took_us)))
            if answer == "acked":
                told.acked[topic] |= dict.fromkeys(range(int(first), int(first) + int(count)), int(at_ms))
            else:
                told.refused[answer] += 1
        return told

    def missing(self, topic: str, values: list[bytes | None], upto: int | None = None) -> str | None:
        """The failed expectation about the records found, if any; with `upto`, only about records below it.

        The tail of a compacted log is copied only after it was cleaned.
        """
        found = [int((value or b"").split()[1]) for value in values]
        due = {number: at_ms for number, at_ms in self.acked[topic].items() if upto is None or number < upto}
        if topic == "latest":
            newest = {number % KEYS: number for number in sorted(due)}
            lost = set(newest.values()) - set(found)
        else:
            oldest_ms = time.time_ns() // 1_000_000 - RETENTION_MS if topic == "short" else 0
            lost = {number for number, at_ms in due.items() if at_ms > oldest_ms} - set(found)
        if found != sorted(set(found)):
            return f"{topic}: records out of order, or twice"
        return f"{topic}: {len(lost)} acknowledged records are missing, the first {min(lost)}" if lost else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--way", choices=[way.name for way in Way if way is not Way.OPEN], default=Way.REFUSED.name)
    parser.add_argument("--before", type=float, default=3, help="minutes of peace before it")
    parser.add_argument("--after", type=float, default=3, help="minutes of peace after it")
    parser.add_argument("--home", type=Path, help="a new directory that is kept; default: one that is not")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, S3Endpoint() as endpoint:
        endpoint.create_bucket("fault-days")
        home = (asked.home or Path(place)) / "home"
        home.mkdir(parents=True)
        with Gate(int(endpoint.url.rpartition(":")[2])) as gate:
            wrong = outage(home, gate, endpoint, Way[asked.way], asked.minutes, asked.before, asked.after)
    for each in wrong:
        print("WRONG:", each)
    print(f"{asked.way.lower()} for {asked.minutes:g} min: {'broken' if wrong else 'all promises kept'}")
    return 1 if wrong else 0


def outage(
    home: Path, gate: Gate, endpoint: S3Endpoint, way: Way, minutes: float, before: float, after: float
) -> list[str]:
    """Run the outage; return the failed expectations."""
    node = Node(home, gate.url)
    node.defaults = dict(DEFAULTS)
    node.configure()
    with node.manager() as manager:
        for topic, (told, _, _) in TOPICS.items():
            manager.topics.create(topic, 1, told, now_ms=time.time_ns() // 1_000_000)
    acks = home.with_name("acks")
    environ = {"OUTAGE_ACKS": str(acks)}
    with Daemon(node, ("run", "--metrics", ":0"), program=("-c", PROGRAM), environ=environ) as daemon:
        watch = Watch(daemon, home.with_name("looks.jsonl"))
        watch.during("before", before)
        shut_ms = time.time_ns() // 1_000_000
        gate.turn(way)
        watch.during("gone", minutes)
        open_ms = time.time_ns() // 1_000_000
        gate.turn(Way.OPEN)
        back_s = watch.until_well("back")
        watch.during("after", after)
        assert daemon.process.stdin is not None
        daemon.process.stdin.write(b"end\n")
        daemon.process.stdin.flush()
        daemon.wait_for(lambda: True if acks.read_text().endswith("ended\n") else None, "the appends end")
        watch.until_well("end")
        code = daemon.end()
    appends = Appends.read(acks)
    tell(watch, appends, gate, shut_ms, open_ms, back_s)
    wrong = [*judge(watch, appends, minutes), *([f"it ended with {code}"] if code else [])]
    return wrong + check(node, endpoint, appends)


def tell(watch: Watch, appends: Appends, gate: Gate, shut_ms: int, open_ms: int, back_s: float) -> None:
    print(f"well {back_s:.0f} s after the bucket was back; connections or requests that met the gate: {gate.met}")
    for phase in ("before", "gone", "back", "after", "end"):
        looks = watch.of(phase)
        first, last = looks[0], looks[-1]
        span_min = max(last.at_s - first.at_s, 1) / 60
        lines = {level: count - first.lines.get(level, 0) for level, count in last.lines.items()}
        told = {
            "min": f"{span_min:.1f}",
            "rss": f"{first.rss_mb:.0f}..{last.rss_mb:.0f}, max {max(each.rss_mb for each in looks):.0f} MB",
            "threads": f"max {max(each.threads for each in looks)}, last {last.threads}",
            "files": f"max {max(each.fds for each in looks)}, last {last.fds}",
            "cpu": f"{(last.cpu_s - first.cpu_s) / span_min:.2f} s/min",
            "calls": f"{(last.calls - first.calls) / span_min:.1f}/min",
            "requests": f"{(last.requests - first.requests) / span_min:.1f}/min",
            "log": f"{(last.log_bytes - first.log_bytes) / span_min / 1000:.1f} kB/min {lines}",
            "health": f"{dict(Counter(each.health for each in looks))} in {max(each.health_s for each in looks):.2f} s",
            "lag": f"{max(each.lag_segments for each in looks):.0f} segments",
            "oldest": f"{max(each.lag_s for each in looks):.0f} s",
            "at risk": f"{max(each.at_risk_mb for each in looks):.1f} MB",
        }
        print(f"{phase:6} " + "; ".join(f"{name} {value}" for name, value in told.items()))
    for name, low, high in (("before", 0, shut_ms), ("gone", shut_ms, open_ms), ("then", open_ms, 1 << 62)):
        took = sorted(took_us for at_ms, took_us in appends.took_us if low <= at_ms < high)
        p50, p99 = took[len(took) // 2] / 1000, took[len(took) * 99 // 100] / 1000
        print(f"appends {name:6} {len(took):6}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {took[-1] / 1000:.0f} ms")
    print(f"acknowledged {sum(map(len, appends.acked.values()))} records, refused {dict(appends.refused)}")


def judge(watch: Watch, appends: Appends, minutes: float) -> list[str]:
    """Failed expectations about the measurements."""
    before, gone, last = watch.of("before")[-1], watch.of("gone"), watch.looks[-1]
    wrong = [f"appends were refused: {dict(appends.refused)}"] if appends.refused else []
    lines = {level: count - gone[0].lines.get(level, 0) for level, count in gone[-1].lines.items()}
    loud = sum(lines.get(level, 0) for level in ("WARNING", "ERROR", "CRITICAL"))
    if loud > 20 + 4 * minutes:
        wrong.append(f"its log floods: {lines}")
    if minutes >= 5 and gone[-1].health != 503:
        wrong.append("health does not tell that the bucket is gone")
    if minutes >= 5 and (healthy := [each.at_s for each in gone[len(gone) // 4 :] if each.health != 503]):
        wrong.append(f"health said for a while that all is well: at {healthy[:5]} s, {len(healthy)} times")
    if max(each.health_s for each in watch.looks) > 5:
        wrong.append("health was slow to answer")
    if last.rss_mb > before.rss_mb + 64:
        wrong.append(f"memory is not back: {before.rss_mb} MB before, {last.rss_mb} MB")
    if last.threads > before.threads + 8 or last.fds > before.fds + 16:
        wrong.append(f"threads or files are not back: {before.threads}, {before.fds}; {last.threads}, {last.fds}")
    return wrong


def check(node: Node, endpoint: S3Endpoint, appends: Appends) -> list[str]:
    """Failed expectations about the final state, after another process copied everything."""
    now_ms = time.time_ns() // 1_000_000
    wrong: list[str] = []
    with node.manager() as manager:
        for topic in TOPICS:
            manager.partitions.roll(topic, now_ms=now_ms)
    once = [sys.executable, "-m", "tiered", "-C", str(node.home)]
    done = subprocess.run([*once, "run", "--once"], capture_output=True, text=True, timeout=600)
    if done.returncode:
        wrong.append(f"a run afterwards ended with {done.returncode}: {done.stderr[-2000:]}")
    with node.manager() as manager:
        for topic in TOPICS:
            values = [
                record.value for record in manager.reader().records(TopicPartition(topic, 0), start(manager, topic))
            ]
            wrong += filter(None, [appends.missing(topic, values)])
    with open_remote(f"s3://{node.bucket}/p", endpoint.options()) as bucket:
        for topic in COPIED:
            name = TopicPartition(topic, 0)
            values = [record.value for record in bucket.reader().records(name, start(bucket, topic))]
            told = appends.missing(
                topic, values, bucket.manifest(name).allocated_end_offset if topic == "latest" else None
            )
            if told is not None:
                wrong.append(f"in the bucket alone, {told}")
    sound_roots(f"s3://{node.bucket}", endpoint.options())
    listed = subprocess.run([*once, "gc", "--dry-run", "-o", "json"], capture_output=True, text=True, timeout=600)
    found = []
    with suppress(ValueError):
        found = json.loads(listed.stdout)
    print(f"left behind: {listed.stdout.strip()[:2000] if listed.returncode else 'nothing'}")
    if listed.returncode:
        wrong.append(f"something is left behind (code {listed.returncode}): {found or listed.stderr[-500:]}")
    return wrong


def start(tiers: object, topic: str) -> int:
    """The log start offset of a partition."""
    offset: int = tiers.reader().offsets(TopicPartition(topic, 0))[0]  # type: ignore[attr-defined]
    return offset


if __name__ == "__main__":
    sys.exit(main())
