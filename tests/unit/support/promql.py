"""Evaluator for the subset of PromQL that the project's alerts use, with the results of Prometheus.

Supported: selectors with ``=`` and ``!=``, ranges, arithmetic, comparisons as filters, ``and or unless`` with ``on``,
``sum`` and ``max`` with ``by``, and the functions of `_FUNCTIONS`. Where `promtool` is installed, a test compares it
with this evaluator on the same samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LOOKBACK_S = 300.0  # maximum age of the sample that an instant selector uses
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Series = Mapping[str, Mapping[Labels, Sequence[tuple[float, float]]]]
"""Of each metric, of each of its label sets: (time in s, value), by time."""

_TOKEN = re.compile(
    r"\s*(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![smhd\w])"
    r'|\s*(?P<string>"[^"]*")|\s*(?P<span>\d+[smhd])|\s*(?P<word>[A-Za-z_]\w*)|\s*(?P<sign>==|!=|>=|<=|[-+*/()\[\]{},<>=])'
)
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def evaluate(expr: str, series: Series, at_s: float) -> Vector | float:
    """The value of `expr` at a time. Raises ValueError for unsupported expressions."""
    return _Query(expr, series, at_s).result()


@dataclass(frozen=True)
class _Range:
    """Samples of each label set within the last `span_s`."""

    found: dict[Labels, list[tuple[float, float]]]
    span_s: float


class _Query:
    """A parser that evaluates while it parses. Expressions are short and evaluated a few hundred times."""

    def __init__(self, expr: str, series: Series, at_s: float) -> None:
        self._tokens = list(_tokens(expr))
        self._series, self._at_s = series, at_s

    def result(self) -> Vector | float:
        found = self._level(0)
        if self._tokens:
            raise ValueError(f"what is {self._tokens}?")
        assert not isinstance(found, _Range)
        return found

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, wanted: str = "") -> str:
        token = self._tokens.pop(0)
        if wanted and token != wanted:
            raise ValueError(f"{wanted} is expected, not {token}")
        return token

    def _level(self, level: int) -> Vector | float | _Range:
        if level == len(_LEVELS):
            return self._factor()
        left = self._level(level + 1)
        while self._next() in _LEVELS[level]:
            sign = self._take()
            on = self._names() if self._next() == "on" and self._take() else None
            left = _joined(sign, left, self._level(level + 1), on)
        return left

    def _factor(self) -> Vector | float | _Range:
        token = self._take()
        if token == "(":
            found = self._level(0)
            self._take(")")
            return found
        if token[0].isdigit():
            return float(token)
        if token in ("sum", "max"):
            return self._aggregate(token)
        if token in _FUNCTIONS and self._next() == "(":
            return self._call(token)
        return self._selector(token)

    def _names(self) -> tuple[str, ...]:
        self._take("(")
        found = []
        while (token := self._take()) != ")":
            found += [token] if token != "," else []
        return tuple(found)

    def _aggregate(self, how: str) -> Vector:
        by = self._names() if self._next() == "by" and self._take() else ()
        self._take("(")
        inner = self._level(0)
        self._take(")")
        assert isinstance(inner, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(_only(labels, by), []).append(value)
        return {labels: sum(values) if how == "sum" else max(values) for labels, values in groups.items()}

    def _call(self, name: str) -> Vector | float:
        self._take("(")
        arguments = []
        while self._next() != ")":
            arguments.append(self._level(0))
            if self._next() == ",":
                self._take()
        self._take(")")
        return _FUNCTIONS[name](self._at_s, *arguments)

    def _selector(self, metric: str) -> Vector | _Range:
        wanted = list(self._matchers()) if self._next() == "{" else []
        found = {
            labels: samples
            for labels, samples in self._series.get(metric, {}).items()
            if all((dict(labels).get(name, "") == value) == is_equal for name, value, is_equal in wanted)
        }
        if self._next() == "[":
            self._take()
            span_s = _seconds(self._take())
            self._take("]")
            return _Range({labels: self._within(each, span_s) for labels, each in found.items()}, span_s)
        newest = {labels: self._within(each, LOOKBACK_S)[-1:] for labels, each in found.items()}
        return {labels: each[0][1] for labels, each in newest.items() if each}

    def _matchers(self) -> Iterator[tuple[str, str, bool]]:
        self._take("{")
        while self._next() != "}":
            name, sign, value = self._take(), self._take(), self._take()
            yield name, value.strip('"'), {"=": True, "!=": False}[sign]
            if self._next() == ",":
                self._take()
        self._take("}")

    def _within(self, samples: Sequence[tuple[float, float]], span_s: float) -> list[tuple[float, float]]:
        return [each for each in samples if self._at_s - span_s <= each[0] <= self._at_s]


def _tokens(expr: str) -> Iterator[str]:
    at = 0
    while expr[at:].strip():
        found = _TOKEN.match(expr, at)
        if found is None:
            raise ValueError(f"what is {expr[at:]!r}?")
        at = found.end()
        yield found[0].strip()


def _seconds(span: str) -> float:
    return int(span[:-1]) * _SPANS[span[-1]]


def _only(labels: Labels, names: Sequence[str]) -> Labels:
    return frozenset(each for each in labels if each[0] in names)


def _joined(sign: str, left: object, right: object, on: tuple[str, ...] | None) -> Vector | float:
    if isinstance(left, float) and isinstance(right, float):
        return _computed(sign, left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return _matched(sign, left, right, on)
    if isinstance(left, dict) and isinstance(right, float):
        pairs = {labels: (value, right) for labels, value in left.items()}
    elif isinstance(left, float) and isinstance(right, dict):
        pairs = {labels: (left, value) for labels, value in right.items()}
    else:
        raise ValueError(f"{sign} is not between such values")
    if sign in _COMPARISONS:
        kept = {labels for labels, pair in pairs.items() if _COMPARISONS[sign](*pair)}
        return {
            labels: value for labels, value in (left if isinstance(left, dict) else right).items() if labels in kept
        }  # type: ignore[union-attr]
    return {labels: _computed(sign, *pair) for labels, pair in pairs.items()}


def _matched(sign: str, left: Vector, right: Vector, on: tuple[str, ...] | None) -> Vector:
    def key(labels: Labels) -> Labels:
        return labels if on is None else _only(labels, on)

    there = {key(labels): value for labels, value in right.items()}
    if sign == "or":
        ours = {key(labels) for labels in left}
        return left | {labels: value for labels, value in right.items() if key(labels) not in ours}
    if sign in ("and", "unless"):
        return {labels: value for labels, value in left.items() if (key(labels) in there) == (sign == "and")}
    both = {labels: (value, there[key(labels)]) for labels, value in left.items() if key(labels) in there}
    if sign in _COMPARISONS:
        return {labels: pair[0] for labels, pair in both.items() if _COMPARISONS[sign](*pair)}
    return {labels: _computed(sign, *pair) for labels, pair in both.items()}


def _computed(sign: str, left: float, right: float) -> float:
    if sign == "/" and right == 0:
        return float("nan") if left == 0 or left != left else float("inf") if left > 0 else float("-inf")
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[sign]


def _increase(at_s: float, given: _Range) -> Vector:
    """Prometheus' extrapolation: the increase of the samples, extended to the ends of the range if close."""
    found = {}
    for labels, samples in given.found.items():
        if len(samples) < 2:
            continue
        (first_s, first), (last_s, last) = samples[0], samples[-1]
        resets = sum(a for (_, a), (_, b) in pairwise(samples) if b < a)
        grown, covered_s = last - first + resets, last_s - first_s
        between_s = covered_s / (len(samples) - 1)
        before_s, after_s = first_s - (at_s - given.span_s), at_s - last_s
        if grown > 0 and first >= 0:
            before_s = min(before_s, covered_s * (first / grown))
        stretched_s = covered_s + sum(each if each < between_s * 1.1 else between_s / 2 for each in (before_s, after_s))
        found[labels] = grown * stretched_s / covered_s
    return found


def _rate(at_s: float, given: _Range) -> Vector:
    return {labels: value / given.span_s for labels, value in _increase(at_s, given).items()}


def _predict(at_s: float, given: _Range, ahead_s: float) -> Vector:
    """Linear regression by least squares."""
    found = {}
    for labels, samples in given.found.items():
        if len(samples) < 2:
            continue
        xs, ys = [each[0] - at_s for each in samples], [each[1] for each in samples]
        x, y = sum(xs) / len(xs), sum(ys) / len(ys)
        slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)
        found[labels] = y - slope * x + slope * ahead_s
    return found


def _absent(at_s: float, given: Vector) -> Vector:
    return {} if given else {frozenset(): 1.0}


_FUNCTIONS: dict[str, Callable[..., Vector | float]] = {
    "time": lambda at_s: at_s,
    "abs": lambda at_s, given: {labels: abs(value) for labels, value in given.items()},
    "absent": _absent,
    "increase": _increase,
    "rate": _rate,
    "predict_linear": _predict,
}
