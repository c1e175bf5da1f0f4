"""OpenTelemetry spans around store calls and plans; none if the package is not installed.

Only the API is used. The surrounding program configures the export (``opentelemetry-instrument tiered run``, or an SDK
in an embedding program). The only module that imports `opentelemetry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from local.errors import AlreadyExists, NotFound
from remote.store.middleware.observed_store import Around


class Tracer(Protocol):
    """Returns a context manager for each timed operation."""

    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[object]: ...


class _NoTracer:
    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[object]:
        return nullcontext()


class _OpenTelemetry:
    """Spans of a tracer of the `opentelemetry` package."""

    def __init__(self, tracer: Any) -> None:  # noqa: ANN401 - the package may not be there to name its types
        self._tracer = tracer

    @contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[object]:
        from opentelemetry.trace import Status, StatusCode

        named = {f"tiered.{key}": value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(
            name, attributes=named, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except (NotFound, AlreadyExists) as answer:
                span.set_attribute("tiered.answer", type(answer).__name__)
                raise
            except Exception as error:
                # The class only: a message may have keys of a customer's topics.
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise


def tracer(provider: object | None = None) -> Tracer:
    """Return spans of `provider`, or of the global one; without the package, spans that do nothing."""
    try:
        from opentelemetry import trace
    except ImportError:
        return _NoTracer()
    return _OpenTelemetry(trace.get_tracer("tiered", tracer_provider=provider))  # type: ignore[arg-type,unused-ignore]


def store_spans(spans: Tracer) -> Around:
    """Return spans around each store call: ``tiered.store.get`` and so on, with the key.

    `remote.store.middleware.observed_store` calls them.
    """
    return lambda op, key: spans.span(f"tiered.store.{op}", key=key)
