"""Kafka's dump tool as values: the output of `DumpLogSegments` for many files, parsed line by line.

Batches become `Row` dictionaries under the names of the tool, with numbers and booleans. Records stay text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafka_broker import KafkaBroker

Row = dict[str, object]
_PAIR = re.compile(r"(\w+): (OptionalLong\[-?\d+\]|OptionalLong\.empty|\S+)")
DUMP_TOOL = "kafka.tools.DumpLogSegments"


@dataclass(slots=True)
class Dumped:
    """One file: batches and records of a ``.log``, entries of an index or a snapshot, and every printed line."""

    batches: list[Row] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)
    entries: list[Row] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def dump(broker: KafkaBroker, files: Sequence[Path], *options: str) -> dict[Path, Dumped]:
    """Dump all `files` in one run of the tool, with deep iteration and the data of records."""
    if not files:
        return {}
    words = ["--files", ",".join(map(str, files)), "--deep-iteration", "--print-data-log", *options]
    return parse(broker.tool(DUMP_TOOL, *words))


def parse(text: str) -> dict[Path, Dumped]:
    found: dict[Path, Dumped] = {}
    current = Dumped()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("Dumping "):
            current = found[Path(line.removeprefix("Dumping "))] = Dumped()
        elif line.startswith("baseOffset: "):
            current.batches.append(_row(line))
        elif line.startswith("| offset: "):
            current.records.append(_row(line))
        elif line.startswith(("offset: ", "timestamp: ", "producerId: ", "version: ")):
            current.entries.append(_row(line))
        current.lines.append(line)
    return found


def _row(line: str) -> Row:
    return {name: _value(text) for name, text in _PAIR.findall(line)}


def _value(text: str) -> object:
    text = text.removeprefix("OptionalLong[").removesuffix("]") if text.startswith("OptionalLong[") else text
    if text == "OptionalLong.empty":
        return None
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text
