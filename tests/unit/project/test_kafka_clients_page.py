"""The page of Kafka clients names the tests that run them, and the versions that the endpoint serves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tiered.serve.messages.base import Api
from tiered.serve.protocol import SERVED

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "kafka-clients.md"
# The words by which the module of a test uses a client.
USED_BY = {
    "Java": r"(kafka\.command|run_java)",
    "Java 3": "kafka_3",
    "Kafka Streams": "kafka_streams",
    "MirrorMaker 2": "mirror_maker",
    "Spark's connector": "find_spark_connector",
    "franz-go": "franz_go",
    "rskafka": "rskafka",
    "librdkafka": "(confluent_kafka|group_consumers)",
    "kafka-python": r"(\bkafka\.|served_node|by_kafka_python|group_consumers)",
    "aiokafka": r"(aiokafka|served_node|group_consumers)",
}


def rows_below(heading: str) -> Iterator[list[str]]:
    text = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (.+) \|$", text, re.MULTILINE)[1:]:
        yield line.split(" | ")


def test_each_named_test_exists_and_its_module_runs_the_named_clients() -> None:
    rows = list(rows_below("What they do"))
    for _, _, clients, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert named, tests
        for path, name in named:
            text = (ROOT / path).read_text()
            assert name in {each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}, name
            for client in clients.split(", "):
                assert re.search(USED_BY[client], text), f"{path} has no {client}"
    assert len(rows) > 25


def test_the_versions_are_those_that_are_served() -> None:
    rows = list(rows_below("Versions that they sent"))
    served = {"".join(word.capitalize() for word in Api(key).name.split("_")): SERVED[key] for key in sorted(SERVED)}
    assert [row[0] for row in rows] == list(served)
    for name, versions, *sent in rows:
        first, last = served[name].min_version, served[name].max_version
        assert versions == (f"{first}-{last}" if first != last else f"{first}")
        assert all(first <= int(each) <= last for cell in sent for each in re.findall(r"\d+", cell))
