"""``tiered dump --hex``: the bytes of batches and records with the meaning of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tiered.cli.data.dump_results import DumpedBytes, DumpedField
from tiered.cli.render import print_result, write_lines

if TYPE_CHECKING:
    from local.names import TopicPartition
    from tiered.inspect.dump_rows import BatchRow
    from tiered.inspect.hex_dump import HexField

_BYTES = 8  # in a line, so that it fits in 80 columns
_MOMENTS = {"baseTimestamp", "maxTimestamp", "timestamp", "timestampDelta"}
_LINES_MAX = 16  # of one field in the table; other forms have every byte

Batches = Iterable["tuple[BatchRow, Iterable[HexField]]"]


def print_hex(batches: Batches, title: list[str], output: str, where: Sequence[TopicPartition]) -> None:
    """Print `title` and the fields as a table; other formats have `where` and a row for each field."""
    if output in ("table", "text"):
        write_lines(title)
        write_lines(_lines(batches))
        return
    print_result(DumpedBytes.of(*where, fields=[]), output, rows=_rows(batches))


def _lines(batches: Batches) -> Iterator[str]:
    for row, fields in batches:
        where = "" if row.position is None else f" at {row.position}"
        yield f"batch{where}: offsets {row.base_offset}..{row.last_offset}, {row.size} bytes"
        for field in fields:
            yield from _field_lines(field)


def _field_lines(field: HexField) -> Iterator[str]:
    from tiered.inspect.hex_dump import text_of

    place = "+" if field.is_inflated else " "
    is_text = field.value == text_of(field.data) and len(field.data) > _BYTES
    for number, at in enumerate(range(0, max(1, len(field.data)), _BYTES)):
        data = field.data[at : at + _BYTES]
        if number == _LINES_MAX:
            yield f"{'':34}{'  ' * field.depth}... {len(field.data) - at} bytes more"
            return
        name = field.name if number == 0 else ""
        value = text_of(data) if is_text else _short(field) if number == 0 else ""
        words = f"{'  ' * field.depth}{name:<{20 - 2 * field.depth}} {value}".rstrip()
        yield f"{place}{field.at + at:08x}  {data.hex(' '):<23} {words}"


def _short(field: HexField) -> str:
    """Format a moment without the number, which the bytes already show."""
    return field.value.rpartition(": ")[2] if field.name in _MOMENTS else field.value


def _rows(batches: Batches) -> Iterator[DumpedField]:
    for row, fields in batches:
        for field in fields:
            yield DumpedField(
                base_offset=row.base_offset,
                position=row.position,
                at=field.at,
                is_inflated=field.is_inflated,
                depth=field.depth,
                field=field.name,
                bytes=field.data.hex(),
                value=field.value,
            )
