"""A small node on which every command has work or output."""

from __future__ import annotations

import shlex
from pathlib import Path

from external_samples import NAME, put_log, write_log

from local.format.record import Record
from local.log.producer_state import Producer
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.manager.manager import LogManager


def make_place(home: Path) -> None:
    """Fill the current directory `home` with input for every command.

    It has two disks, a tiered topic, a compacted view, an open transaction, a list of orphans, a report, a plan, an
    external bucket and a file of keys to erase.
    """
    (home / "other").mkdir()
    (home / "theirs").mkdir()
    store = open_store((home / "theirs").as_uri())
    for files in write_log(home / "log" / NAME.directory).segments:
        put_log(store, files)
    store.close()
    (home / "bucket").mkdir()
    (home / "tiered.toml").write_text(
        f'[local]\ndirs = ["data", "second"]\n[remote]\nurl = "file://{home}/bucket"\n'
        '[defaults]\n"remote.storage.enable" = true\n"segment.bytes" = "1KiB"\n"segment.ms" = "1h"\n'
        '"local.retention.ms" = "1s"\n'
    )
    for line in ("topic create orders -p 2", "topic create keyed -X cleanup.policy=compact", "topic create open"):
        assert invoke(["-q", *shlex.split(line)]) == 0
    (home / "keys").write_text("k3\n")
    (home / "lines").write_text("".join(f"k{number % 7}:line {number}\n" for number in range(200)))
    for topic in ("orders", "keyed"):
        assert invoke(["-q", "append", topic, "lines", "-K", ":", "--batch", "10"]) == 0
    _open_transaction(home)
    assert invoke(["-q", "run", "--once"]) == 0
    assert invoke(["-q", "view", "build", "keyed"]) == 0
    assert invoke(["-q", "append", "orders", "lines", "-K", ":", "--batch", "10"]) == 0
    assert invoke(["-q", "plan", "--out", "plan.json"]) == 0
    assert invoke(["-q", "scrub", "--report", "report.json"]) == 0
    assert invoke(["-q", "gc"]) == 0


def _open_transaction(home: Path) -> None:
    config, now_ms = Config.load(str(home / "tiered.toml")), 1_795_176_000_000
    with LogManager.open(config, now_ms=now_ms) as manager:
        (held,) = manager.partitions.all(["open"])
        producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        held.log.append([Record(b"k", b"v", now_ms)], now_ms=now_ms, producer=producer)
