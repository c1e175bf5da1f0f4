"""Metrics as text: Prometheus' exposition format 0.0.4 and OpenMetrics 1.0.

Only metrics of the table are allowed. The formats differ little. OpenMetrics names the family of a counter without its
``_total``, escapes quotes in HELP, and writes the bounds of buckets as floats. It ends with ``# EOF``, which proves
that the text is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tiered.observe.metric_table import METRICS, Kind, Metric
from tiered.service.observations import HistogramCounts


class Form(Enum):
    """Text format, with its content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric. `labels` are pairs of name and value."""

    name: str
    value: float | HistogramCounts
    labels: tuple[tuple[str, str], ...] = ()


def form_of(accept: str) -> Form:
    """Return the form that an Accept header prefers; Prometheus' for no preference."""
    liked = {Form.PROMETHEUS: 0.0, Form.OPEN_METRICS: 0.0}
    for each in accept.split(","):
        kind, *parameters = (part.strip().casefold() for part in each.split(";"))
        weight = _weight(parameters)
        if kind == "application/openmetrics-text":
            liked[Form.OPEN_METRICS] = max(liked[Form.OPEN_METRICS], weight)
        elif kind in ("text/plain", "text/*", "*/*"):
            liked[Form.PROMETHEUS] = max(liked[Form.PROMETHEUS], weight)
    return Form.OPEN_METRICS if liked[Form.OPEN_METRICS] > liked[Form.PROMETHEUS] else Form.PROMETHEUS


def exposition(samples: Iterable[Sample], form: Form = Form.PROMETHEUS) -> str:
    """Format samples in the order of the table, without metrics that have no sample."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        own = found.pop(metric.name, [])
        if own:
            family = _family(metric, form)
            lines.append(f"# HELP {family} {_help(metric.doc, form)}")
            lines.append(f"# TYPE {family} {metric.kind.value}")
        for sample in own:
            assert isinstance(sample.value, HistogramCounts) == (metric.kind is Kind.HISTOGRAM), metric.name
            lines += _lines(sample, form)
    assert not found, f"metrics that the table does not have: {sorted(found)}"
    if form is Form.OPEN_METRICS:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines)


def _weight(parameters: Iterable[str]) -> float:
    """Return the ``q`` of a type in an Accept header: 1 without one, 0 for an invalid one."""
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def _family(metric: Metric, form: Form) -> str:
    is_short = form is Form.OPEN_METRICS and metric.kind is Kind.COUNTER
    return metric.name.removesuffix("_total") if is_short else metric.name


def _lines(sample: Sample, form: Form) -> Iterable[str]:
    if not isinstance(sample.value, HistogramCounts):
        yield f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}"
        return
    for bound, count in sample.value.buckets:
        yield f"{sample.name}_bucket{_labels((*sample.labels, ('le', _bound(bound, form))))} {count}"
    yield f"{sample.name}_sum{_labels(sample.labels)} {_number(sample.value.total)}"
    yield f"{sample.name}_count{_labels(sample.labels)} {sample.value.count}"


def _bound(value: float, form: Form) -> str:
    is_float = form is Form.OPEN_METRICS and value != float("inf")
    return repr(float(value)) if is_float else _number(value)


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str, form: Form) -> str:
    return _escaped(text) if form is Form.OPEN_METRICS else text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
