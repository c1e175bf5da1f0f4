"""Counters of a Kafka endpoint since its start: the event loop writes them, any thread reads them.

Names and labels are those of ``tiered/observe/metrics.toml``, which states Kafka's own name of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from local.errors import LogError
from tiered.serve.messages.base import Error
from tiered.serve.messages.fetch import FetchResponse
from tiered.service.observations import Histogram, HistogramCounts

K = TypeVar("K")
Labels = tuple[tuple[str, str], ...]
Figure = tuple[str, float | HistogramCounts, Labels]
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)


class EndpointEnded(LogError):
    """The endpoint, or a part of it, ended by an unexpected error. Restart the process."""


class EndpointMetrics:
    """`connection_count` and `unsent_bytes` are callables of the server, `group_figures` of the node.

    `failure`: why a part of the server ended.
    """

    def __init__(self) -> None:
        self.failure: EndpointEnded | None = None
        self.connection_count: Callable[[], int] = lambda: 0
        self.unsent_bytes: Callable[[], int] = lambda: 0
        self.group_figures: Callable[[], Iterable[Figure]] = lambda: ()
        self._durations: dict[str, Histogram] = {}
        # Plain dicts: copying one is a single step of the interpreter.
        self._errors: dict[tuple[str, str], int] = {}
        self._sent_bytes: dict[tuple[str, str], int] = {}
        self._refused: dict[str, int] = {}

    def ended(self, part: str, error: BaseException) -> None:
        """Note that a part of the server ended; the first one counts."""
        self.failure = self.failure or EndpointEnded(f"{part} ended", cause=repr(error))

    def answered(self, api: str, response: object, seconds: float) -> None:
        """Count a request and the error codes in its response. `seconds`: until the client has the response."""
        if (durations := self._durations.get(api)) is None:
            durations = self._durations[api] = Histogram(REQUEST_BUCKETS)
        durations.observe(seconds)
        if isinstance(response, FetchResponse) and not response.has_errors():
            return  # most requests of consumers
        for error in error_codes(response):
            _add(self._errors, (api, getattr(error, "name", "UNKNOWN")), 1)  # another node may send any number

    def unsupported(self, api: str) -> None:
        """Count a request of an API or version that is not served."""
        _add(self._errors, (api, Error.UNSUPPORTED_VERSION.name), 1)

    def fetched(self, topic: str, size_bytes: int, *, is_remote: bool) -> None:
        """Count record bytes of a response; `is_remote`: they were read from the bucket or its cache."""
        if size_bytes:
            _add(self._sent_bytes, (topic, "remote" if is_remote else "local"), size_bytes)

    def refused(self, reason: str) -> int:
        """Count a connection that was closed at once; return how many were for this reason."""
        return _add(self._refused, reason, 1)

    def figures(self) -> Iterator[Figure]:
        """(name, value, labels) of every metric."""
        for api, durations in sorted(self._durations.copy().items()):
            counts = durations.counts()
            yield "tiered_kafka_requests_total", counts.count, (("api", api),)
            yield "tiered_kafka_request_duration_seconds", counts, (("api", api),)
        for (api, error), count in sorted(self._errors.copy().items()):
            yield "tiered_kafka_request_errors_total", count, (("api", api), ("error", error))
        for (topic, tier), size_bytes in sorted(self._sent_bytes.copy().items()):
            yield "tiered_kafka_sent_bytes_total", size_bytes, (("topic", topic), ("tier", tier))
        yield "tiered_kafka_connections", self.connection_count(), ()
        yield "tiered_kafka_unsent_bytes", self.unsent_bytes(), ()
        for reason, count in sorted({"limit": 0, **self._refused}.items()):
            yield "tiered_kafka_connections_refused_total", count, (("reason", reason),)
        yield from self.group_figures()


def error_codes(message: object) -> Iterator[Error]:
    """All error codes but NONE in a response, nested ones too; none of no response."""
    if message is None:
        return
    has_code, nested = _shape(type(message))  # type: ignore[arg-type]  # a class is hashable
    if has_code and (code := getattr(message, "error_code")) is not Error.NONE:  # noqa: B009 - of an unknown class
        yield code
    for name in nested:
        for each in getattr(message, name) or ():
            if is_dataclass(each):
                yield from error_codes(each)


def _add(counts: dict[K, int], key: K, by: int) -> int:
    total = counts[key] = counts.get(key, 0) + by
    return total


@cache
def _shape(kind: type[Any]) -> tuple[bool, tuple[str, ...]]:
    """Whether messages of this class have an error code, and their fields with tuples of messages."""
    found: Mapping[str, str] = {each.name: str(each.type) for each in fields(kind)}
    return "error_code" in found, tuple(name for name, text in found.items() if text.startswith("tuple["))
