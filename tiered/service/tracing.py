"""Spans of OpenTelemetry round calls to the store and round plans, where its package is installed; nothing elsewhere.

Who exports them, and where to, is the business of the program around (``opentelemetry-instrument tiered run``, or an
SDK that an embedding program has set up): only the API is used here. The door to `opentelemetry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from local.errors import AlreadyExists, NotFound
from remote.store.middleware.observed_store import Around


class Tracer(Protocol):
    """Gives a context manager for each thing that takes time."""

    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[object]: ...


class _NoTracer:
    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[object]:
        return nullcontext()


class _OpenTelemetry:
    """Spans of the global provider, or of the one given."""

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
                # The class alone: a message may name keys of a customer's topics.
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise


def tracer(provider: object | None = None) -> Tracer:
    """Spans of `provider`, or of OpenTelemetry's global one; one that does nothing where that is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return _NoTracer()
    return _OpenTelemetry(trace.get_tracer("tiered", tracer_provider=provider))  # type: ignore[arg-type,unused-ignore]


def store_spans(spans: Tracer) -> Around:
    """Round each call to a store (`remote.store.middleware.observed_store`): ``tiered.store.get`` and so on, with the
    key."""
    return lambda op, key: spans.span(f"tiered.store.{op}", key=key)
