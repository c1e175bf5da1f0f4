"""Metrics as text that Prometheus reads (exposition format 0.0.4). Only what is in the table may be written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered.metric_table import METRICS, Kind
from tiered.observations import HistogramCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric. `labels` are pairs of name and value."""

    name: str
    value: float | HistogramCounts
    labels: tuple[tuple[str, str], ...] = ()


def exposition(samples: Iterable[Sample]) -> str:
    """The text, metrics in the order of the table; those without a sample are left out."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        own = found.pop(metric.name, [])
        if own:
            lines.append(f"# HELP {metric.name} {_help(metric.doc)}")
            lines.append(f"# TYPE {metric.name} {metric.kind.value}")
        for sample in own:
            assert isinstance(sample.value, HistogramCounts) == (metric.kind is Kind.HISTOGRAM), metric.name
            lines += _lines(sample)
    assert not found, f"metrics that the table does not have: {sorted(found)}"
    return "".join(f"{line}\n" for line in lines)


def _lines(sample: Sample) -> Iterable[str]:
    if not isinstance(sample.value, HistogramCounts):
        yield f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}"
        return
    for bound, count in sample.value.buckets:
        yield f"{sample.name}_bucket{_labels((*sample.labels, ('le', _number(bound))))} {count}"
    yield f"{sample.name}_sum{_labels(sample.labels)} {_number(sample.value.total)}"
    yield f"{sample.name}_count{_labels(sample.labels)} {sample.value.count}"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
