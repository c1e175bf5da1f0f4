"""Exported settings have the same effect elsewhere: in another directory of this tool, and in Kafka's notation."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
from pathlib import Path

import pytest

from local.errors import InvalidRequest
from tiered.cli.main import invoke
from tiered.cli.node.generate import example_of
from tiered.config.config import Config
from tiered.config.properties import DEFAULTS, PROPERTIES, Source, parse
from tiered.health.broker_file import broker_settings, read_entries
from tiered.node.topic_registry import Topic
from tiered.topics.config_export import as_toml, export_config, kafka_configs, kafka_value

TOML = """
[local]
dirs = ["one", "/elsewhere/two"]
cordoned = ["/elsewhere/two"]
[remote]
url = "s3://bucket/pre fix"
options = { profile = "prod", client_kwargs = { region_name = "eu-central-1" }, anon = false }
key_ring = "keys"
[defaults]
"remote.storage.enable" = true
"retention.ms" = "30d"
"cost.prices" = "p\\"rices.json"
[topics."o*"]
"segment.bytes" = "64MiB"
"retention.ms" = "60d"
[topics."*"]
"segment.ms" = "1d"
"""


def parsed(values: dict[str, str]) -> dict[str, object]:
    return {name: parse(name, text) for name, text in values.items()}


@pytest.mark.parametrize("everything", [False, True])
def test_exported_toml_gives_the_same_effective_settings(tmp_path: Path, everything: bool) -> None:
    (tmp_path / "tiered.toml").write_text(TOML)
    config = Config.load(str(tmp_path / "tiered.toml"), {"segment.ms": "2d"}, {"TIERED_REMOTE_COMPRESSION": "zstd"})
    topics = [
        Topic(name="orders", topic_id="", partition_count=1, properties={"retention.ms": "7d", "segment.ms": "1h"}),
        Topic(name="others", topic_id="", partition_count=1),
        Topic(name="bills", topic_id="", partition_count=1, properties={"cleanup.policy": "compact, delete"}),
    ]
    other = tmp_path / "other"
    other.mkdir()
    (other / "tiered.toml").write_text(as_toml(config, export_config(config, topics, everything=everything)))
    found = Config.load(str(other / "tiered.toml"))
    for topic in topics:
        assert found.topic_properties(topic.name) == config.topic_properties(topic.name, topic.properties)
    for name in ("", "new", "ordinary"):
        assert parsed(found.topic_properties(name)) == parsed(config.topic_properties(name))
    assert found.data_dirs == (str(other / "one"), "/elsewhere/two")
    assert found.cordoned_dirs == {"/elsewhere/two"}
    assert (found.remote_url, found.remote_options) == (config.remote_url, config.remote_options)
    assert found.key_ring == str(other / "keys")
    assert everything == (set(found.defaults) == set(DEFAULTS))


def test_any_mixture_of_setting_layers_survives_an_export(tmp_path: Path) -> None:
    """Two hundred random configurations."""
    chance, refused = random.Random(7), 0
    names = [name for name, row in PROPERTIES.items() if row.is_per_topic and name != "remote.encryption.key.id"]
    for at in range(200):

        def some(count: int) -> dict[str, str]:
            return {name: example_of(PROPERTIES[name]) for name in chance.sample(names, count)}

        config = Config(
            data_dir=str(tmp_path / "data"),
            path=str(tmp_path / "tiered.toml"),
            defaults=some(3),
            topics={glob: some(2) for glob in chance.sample(["*", "a*", "ab", "?b"], 2)},
            environment=some(chance.randrange(2)),
            overrides=some(chance.randrange(2)),
        )
        topics = [
            Topic(name=name, topic_id="", partition_count=1, properties=some(chance.randrange(3)))
            for name in ("ab", "ac", "cb")
        ]
        text = as_toml(config, export_config(config, topics))
        (tmp_path / "tiered.toml").write_text(text)
        try:
            found = Config.load(str(tmp_path / "tiered.toml"))
        except InvalidRequest:  # a combination that both configurations refuse
            refused += 1
            continue
        for topic in topics:
            wanted = parsed(config.topic_properties(topic.name, topic.properties))
            assert parsed(found.topic_properties(topic.name)) == wanted, (at, text)
        assert parsed(found.topic_properties("")) == parsed(config.topic_properties("")), (at, text)
    assert refused < 100


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["-q", "init"]) == 0
    own = ["-X", "cleanup.policy=delete,compact", "-X", "segment.bytes=64MiB", "-X", "remote.compression=zstd"]
    assert invoke(["-q", "topic", "create", "orders", *own]) == 0
    assert invoke(["-q", "topic", "create", "bills", "-X", "retention.ms=7d"]) == 0
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    capfd.readouterr()
    assert invoke(["config", "export", *words]) == 0
    return capfd.readouterr()


def test_kafka_configs_and_json_exports_use_kafkas_notation(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, told = printed(capfd, "--format", "kafka-configs", "--bootstrap", "b:1")
    first, second = (shlex.split(line) for line in out.splitlines())
    assert first[:7] == [
        "kafka-configs.sh",
        "--bootstrap-server",
        "b:1",
        "--alter",
        "--entity-type",
        "topics",
        "--entity-name",
    ]
    assert second[7:] == [
        "orders", "--add-config",
        "cleanup.policy=[delete,compact],segment.bytes=67108864,remote.storage.enable=true",
    ]  # fmt: skip
    assert "omitted, because Kafka has no such setting: remote.compression" in told
    body = json.loads(printed(capfd, "--format", "json", "--all", "-t", "orders")[0])
    (row,) = body["topics"]
    kafkas = {name for name, each in PROPERTIES.items() if each.source is Source.KAFKA and each.is_per_topic}
    assert set(row["configs"]) == kafkas - {"producer.id.expiration.ms"}
    assert all(re.fullmatch(r"-?[0-9.]+|true|false|[A-Za-z,]+", text) for text in row["configs"].values())


def test_topic_created_from_exported_json_has_the_same_settings(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = json.loads(printed(capfd, "--format", "json")[0])
    assert invoke(["-q", "init", "other"]) == 0
    for row in body["topics"]:
        own = [word for name, text in row["configs"].items() for word in ("-X", f"{name}={text}")]
        assert invoke(["-q", "-C", "other", "topic", "create", row["topic"], *own]) == 0
        for name in row["configs"]:
            values = []
            for place in (".", "other"):
                capfd.readouterr()
                assert invoke(["-C", place, "config", "explain", name, "-t", row["topic"], "-o", "json"]) == 0
                values.append(parse(name, json.loads(capfd.readouterr().out)["settings"][0]["value"]))
            assert values[0] == values[1]


def test_exported_broker_properties_restore_the_defaults(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    over = {
        "retention.ms": "3d",
        "segment.ms": "5h",
        "flush.ms": "7s",
        "compression.type": "lz4",
        "log.cleaner.threads": "3",
    }
    words = [word for name, text in over.items() for word in ("-X", f"{name}={text}")]
    capfd.readouterr()
    assert invoke([*words, "config", "export", "--format", "properties"]) == 0
    out = capfd.readouterr().out
    assert "log.retention.ms=259200000\n" in out
    (home / "server.properties").write_text(out)
    found = broker_settings(read_entries(str(home / "server.properties")))
    assert parsed(found) == parsed({**over, "remote.storage.enable": "true"})
    assert invoke(["config", "export", "--format", "properties", "-t", "bills"]) == 0
    assert capfd.readouterr().out == "remote.storage.enable=true\n"
    assert invoke(["config", "export", "--format", "properties", "-t", "bills", "-t", "orders"]) == 2


def test_kafka_settings_with_units_are_exported_as_numbers() -> None:
    for name, row in PROPERTIES.items():
        assert parse(name, kafka_value(name, example_of(row))) == parse(name, example_of(row)), name
        assert parse(name, kafka_value(name, row.default)) == parse(name, row.default), name
    assert kafka_value("cleanup.policy", " compact ,delete") == "delete,compact"
    assert kafka_configs(Config(data_dir="/x"), []).topics == {}
