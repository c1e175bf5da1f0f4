"""Trace spans around store calls and maintenance rounds, checked with the OpenTelemetry SDK where installed."""

from __future__ import annotations

import builtins

import pytest
from manager_world import NOW, TIERED, World, send

from local.errors import NotFound, Unavailable
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import ObservedStore
from tiered.service.observations import Observations, open_observed, store_spans, tracer
from tiered.service.worker import Worker


def test_store_works_untraced_without_the_opentelemetry_package(monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.startswith("opentelemetry"):
            raise ImportError(name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    store = ObservedStore(MemoryStore(), store_spans(tracer()))
    store.put("k", b"v")
    assert store.get("k") == b"v"


@pytest.fixture
def spans():
    """A tracer provider and an exporter that collects its spans in a list."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def test_each_store_call_is_a_span_and_not_found_is_no_error(spans) -> None:
    provider, exporter = spans
    store = ObservedStore(MemoryStore(), store_spans(tracer(provider)))
    store.put("k", b"v")
    with pytest.raises(NotFound):
        store.get("nothing")
    list(store.list("x"))
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert set(found) == {"tiered.store.put", "tiered.store.get", "tiered.store.list"}
    assert found["tiered.store.put"].attributes["tiered.key"] == "k"
    assert found["tiered.store.get"].attributes["tiered.answer"] == "NotFound"
    assert found["tiered.store.get"].status.is_unset


def test_span_of_an_error_has_only_the_class_of_the_error(spans) -> None:
    provider, exporter = spans

    class Down(MemoryStore):
        def get(self, key: str) -> bytes:
            raise Unavailable("reading", secret="do not tell")

    with pytest.raises(Unavailable):
        ObservedStore(Down(), store_spans(tracer(provider))).get("k")
    (span,) = exporter.get_finished_spans()
    assert span.status.description == "Unavailable"
    assert span.events == ()


def test_maintenance_round_is_a_span_that_contains_its_calls(spans, monkeypatch) -> None:
    provider, exporter = spans
    monkeypatch.setattr("tiered.service.worker.tracer", lambda: tracer(provider))
    world = World()
    around = store_spans(tracer(provider))
    with open_observed(
        world.config, Observations(), now_ms=NOW, storage=world.disk, store=world.store, around=around
    ) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        exporter.clear()
        Worker(manager, now_ms=NOW, interval_ms=1000).round(NOW)
    found = exporter.get_finished_spans()
    (last,) = [span for span in found if span.name == "tiered.round"]
    inside = [span for span in found if span is not last]
    assert inside
    assert {span.parent.span_id for span in inside} == {last.context.span_id}
