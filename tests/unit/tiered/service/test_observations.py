"""Trace spans around store calls and maintenance rounds, checked with the OpenTelemetry SDK where installed."""

from __future__ import annotations

import builtins
import json
import logging
import sys

import pytest
from manager_world import NOW, TIERED, World, send

from local.errors import NotFound, Unavailable
from local.names import TopicPartition
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import ObservedStore
from tiered.service.observations import JsonFormatter, Observations, open_observed, split_facts, store_spans, tracer
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


def line(message: object, *values: object, **more: object) -> dict[str, object]:
    record = logging.LogRecord("tiered.maintenance.apply", logging.INFO, "x.py", 1, message, values, None)
    record.created = 1_795_176_000.5
    for name, value in more.items():
        setattr(record, name, value)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_facts_become_fields_and_the_message_stays_constant() -> None:
    assert line("applied: partition=%s size=%d share=%.1f", TopicPartition("t", 3), 17, 0.25) == {
        "time": "2026-11-20T12:00:00.500Z", "level": "info", "logger": "tiered.maintenance.apply", "message": "applied",
        "partition": "t/3", "size": 17, "share": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "values", "text", "facts"),
    [
        ("no facts at all", (), "no facts at all", {}),
        (
            "retention waits for a manifest page: partition=%s page=%s %s",
            ("t/0", "p", "gone"),
            "retention waits for a manifest page gone",
            {"partition": "t/0", "page": "p"},
        ),
        ("done: cause=%s", ('a "quoted" = text',), "done", {"cause": 'a "quoted" = text'}),
        ("100%% sure: x=%s", (1,), "100% sure: x=1", {}),
        ("constant=yes only", (), "constant=yes only", {}),
        ("kept: none=%s", (None,), "kept", {"none": None}),
    ],
)  # fmt: skip
def test_facts_are_split_from_every_form_of_message(
    message: str, values: tuple[object, ...], text: str, facts: dict[str, object]
) -> None:
    assert split_facts(logging.LogRecord("x", logging.INFO, "x.py", 1, message, values, None)) == (text, facts)


def test_standard_fields_take_precedence_over_facts() -> None:
    found = line("odd: time=%s level=%s", "noon", 3)
    assert (found["level"], found["level_"], found["time_"]) == ("info", 3, "noon")


def test_error_is_logged_with_its_traceback() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        found = line("failed: at=%s", "y", exc_info=sys.exc_info())
    assert "ValueError: x" in str(found["error"])


def test_message_that_does_not_match_its_values_is_still_logged() -> None:
    assert line({"a": 1})["message"] == "{'a': 1}"
