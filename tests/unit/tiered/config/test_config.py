"""The configuration: precedence, checks of every key, no secrets in files, contradictory limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from local.errors import AccessDenied, InvalidRequest, NotFound
from local.settings import LogSettings
from policies.rules import ALL_DAY, DailyWindow, PartitionRules
from tiered.config.config import Config, log_settings, resolve_rules
from tiered.config.properties import BROKER_NAMES, DEFAULTS, ENVIRONMENT, PROPERTIES, Source, parse
from tiered.health.lint import TomlLines

DAY = 86_400_000
HOUR = DAY // 24


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str) -> str:
        path = tmp_path / "tiered.toml"
        path.write_text(text)
        return str(path)

    return written


EVERY_LAYER = """
[local]
dir = "data"
[remote]
url = "s3://bucket/prefix"
options = { profile = "prod" }
[defaults]
"retention.ms" = "30d"
"remote.storage.enable" = true
[topics."orders*"]
"retention.ms" = "20d"
[topics."*-eu"]
"retention.ms" = 10
"""


def test_config_file_loads_every_section(write) -> None:
    path = write(EVERY_LAYER)
    config = Config.load(path)
    assert config.data_dir == os.path.join(os.path.dirname(path), "data")
    assert (config.remote_url, config.remote_options) == ("s3://bucket/prefix", {"profile": "prod"})
    assert config.topic_properties("x")["remote.storage.enable"] == "true"


@pytest.mark.parametrize(
    ("topic", "own", "environ", "override", "expected", "origin"),
    [
        ("other", {}, {}, {}, "30d", "[defaults]"),
        ("orders", {}, {}, {}, "20d", '[topics."orders*"]'),
        ("orders-eu", {}, {}, {}, "10", '[topics."*-eu"]'),
        ("orders", {"retention.ms": "5d"}, {}, {}, "5d", "topic orders"),
        ("orders", {"retention.ms": "5d"}, {"TIERED_RETENTION_MS": "4d"}, {}, "4d", "environment"),
        ("orders", {"retention.ms": "5d"}, {"TIERED_RETENTION_MS": "4d"}, {"retention.ms": "3d"}, "3d", "-X"),
    ],
)
def test_config_layer_overrides_the_layers_below_it(write, topic, own, environ, override, expected, origin) -> None:
    config = Config.load(write(EVERY_LAYER), override, environ)
    (setting,) = [each for each in config.explain(topic, own) if each.name == "retention.ms"]
    assert setting.value == expected
    assert setting.origin.endswith(origin)


def test_config_without_a_file_has_kafkas_defaults() -> None:
    config = Config.load(None)
    assert (config.remote_url, config.path) == (None, None)
    assert config.topic_properties("any") == DEFAULTS
    assert resolve_rules({}) == PartitionRules()
    assert log_settings({}) == LogSettings(timestamp_after_max_ms=3_600_000)


def test_environment_overrides_directory_and_url(write) -> None:
    environ = {"TIERED_LOCAL_DIR": "/elsewhere", "TIERED_REMOTE_URL": "file:///bucket"}
    config = Config.load(write(EVERY_LAYER), {}, environ)
    assert (config.data_dir, config.remote_url) == ("/elsewhere", "file:///bucket")


def test_manager_settings_are_parsed_as_numbers() -> None:
    config = Config.load(None, {}, {"TIERED_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": "1m"})
    assert config.int_of("remote.log.manager.task.interval.ms") == 60_000


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("[defalts]", {"section": "defalts", "did_you_mean": "defaults"}),
        ("[local]\ndri = 'x'", {"section": "local", "key": "dri", "did_you_mean": "dir"}),
        ("[remote]\nurll = 'x'", {"section": "remote", "key": "urll", "did_you_mean": "url"}),
        ("[defaults]\n'retenton.ms' = 1", {"key": "retenton.ms", "did_you_mean": "retention.ms"}),
        ("[defaults]\n'log.retention.hours' = 7", {"key": "log.retention.hours", "did_you_mean": "retention.ms"}),
        ("[topics.a]\n'segment.byte' = 1", {"section": "topics.a", "did_you_mean": "segment.bytes"}),
        ("[topics.a]\n'remote.single.writer' = true", {"key": "remote.single.writer"}),
        ("[defaults]\n'retention.ms' = '7x'", {"key": "retention.ms", "value": "'7x'"}),
        ("[defaults]\n'retention.ms' = -3", {"key": "retention.ms"}),
        ("[defaults]\n'min.cleanable.dirty.ratio' = 1.5", {"key": "min.cleanable.dirty.ratio"}),
        ("[defaults]\n'min.cleanable.dirty.ratio' = nan", {"key": "min.cleanable.dirty.ratio"}),
        ("[defaults]\n'cleanup.policy' = 'shred'", {"key": "cleanup.policy"}),
        ("[defaults]\n'remote.storage.enable' = 'yes'", {"key": "remote.storage.enable"}),
        ("defaults = 3", {"section": "defaults"}),
        ("[local]\ndir = 3", {"section": "local", "key": "dir"}),
        ("[local", {}),
        ("[remote]\nurl = 's3://key:secret@bucket'", {}),
    ],
)
def test_invalid_config_is_refused_with_file_key_and_suggestion(write, text: str, facts: dict[str, str]) -> None:
    path = write(text)
    with pytest.raises(InvalidRequest) as raised:
        Config.load(path)
    assert raised.value.facts.items() >= {"file": path, **facts}.items()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("broker", "topic"),
    [
        ("log.retention.hours", "retention.ms"),
        ("log.retention.minutes", "retention.ms"),
        ("log.retention.ms", "retention.ms"),
        ("log.retention.bytes", "retention.bytes"),
        ("log.local.retention.ms", "local.retention.ms"),
        ("log.segment.bytes", "segment.bytes"),
        ("log.roll.hours", "segment.ms"),
        ("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
        ("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
        ("message.max.bytes", "max.message.bytes"),
    ],
)
def test_broker_setting_name_is_refused_with_the_topic_setting_as_suggestion(broker: str, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="Kafka brokers") as raised:
        Config.load(None, {broker: "7"})
    assert raised.value.facts["did_you_mean"] == topic
    assert raised.value.facts["expected"] == repr(PROPERTIES[topic].expected)


def test_every_broker_setting_name_maps_to_a_topic_setting() -> None:
    assert PROPERTIES.keys().isdisjoint(BROKER_NAMES)
    assert PROPERTIES.keys() >= set(BROKER_NAMES.values())


def test_config_file_with_a_byte_order_mark_or_crlf_is_read(write) -> None:
    text = '[local]\ndir = "here"\n[topics."t"]\n"retention.ms" = "7d"\n'
    plain = Config.load(write(text))
    for body in (text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode("utf-8-sig")):
        path = write("")
        Path(path).write_bytes(body)
        found = Config.load(path)
        assert (found.data_dir, found.topics) == (plain.data_dir, plain.topics)
        assert TomlLines.read(path).file_findings == ()


def test_config_file_without_read_permission_raises_access_denied(write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("")

    def refuse(*words: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(AccessDenied) as met:
        Config.load(path)
    monkeypatch.undo()
    assert met.value.facts == {"file": path, "cause": "eacces"}


def test_missing_config_file_raises_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist: file="):
        Config.load(str(tmp_path / "tiered.toml"))


def test_unknown_override_is_refused_with_its_source() -> None:
    with pytest.raises(InvalidRequest, match=r"key=retention\.sm option=-X did_you_mean=retention\.ms"):
        Config.load(None, {"retention.sm": "1"})


def test_misspelt_variable_is_refused_and_an_unrelated_one_ignored() -> None:
    with pytest.raises(InvalidRequest, match="did_you_mean=TIERED_RETENTION_MS"):
        Config.load(None, {}, {"TIERED_RETENTON_MS": "1d"})
    with pytest.raises(InvalidRequest, match="variable=TIERED_RETENTION_MS"):
        Config.load(None, {}, {"TIERED_RETENTION_MS": "soon"})
    assert Config.load(None, {}, {"TIERED_PURE_KERNELS": "1", "HOME": "/"}).environment == {}


def test_unknown_topic_setting_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"topic=orders did_you_mean=retention\.ms"):
        Config.load(None).topic_properties("orders", {"retentin.ms": "1d"})


@pytest.mark.parametrize(
    "options",
    [
        "key = 'AKIA'",
        "secret = 's'",
        "token = 't'",
        "aws_secret_access_key = 's'",
        "client_kwargs = { aws_session_token = 't' }",
        "storage_options = { account_key = 'k' }",
        "secret = 's', endpoint_url = 'https://s3.example.com'",
        "secret = 's', endpoint_url = 'http://127.0.0.1.example.com'",
        "secret = 's', endpoint_url = 'http://127.0.0.1:1', client_kwargs = { endpoint_url = 'https://real' }",
    ],
)
def test_option_that_looks_like_a_secret_is_refused_without_showing_its_value(write, options: str) -> None:
    path = write(f"[remote]\nurl = 's3://b'\noptions = {{ {options} }}")
    with pytest.raises(InvalidRequest, match="an option looks like a secret; use AWS_") as raised:
        Config.load(path)
    assert "='" not in str(raised.value), "the message must not contain an option's value"


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "localhost:4566", "[::1]:9000"])
def test_loopback_endpoint_may_have_dummy_credentials(write, host: str) -> None:
    options = f"key = 'test', secret = 'test', client_kwargs = {{ endpoint_url = 'http://{host}' }}"
    config = Config.load(write(f"[remote]\nurl = 's3://b'\noptions = {{ {options} }}"))
    assert config.remote_options["key"] == "test"


@pytest.mark.parametrize("options", ["profile = 'prod'", "anon = true", "client_kwargs = { region_name = 'eu-1' }"])
def test_options_without_a_secret_pass(write, options: str) -> None:
    assert Config.load(write(f"[remote]\nurl = 's3://b'\noptions = {{ {options} }}")).remote_options


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (7 * DAY, None, 7 * DAY, None)),
        ({"retention.ms": "-1"}, (None, None, None, None)),
        ({"retention.bytes": "1GiB"}, (7 * DAY, 1 << 30, 7 * DAY, 1 << 30)),
        ({"local.retention.ms": "6h"}, (7 * DAY, None, DAY // 4, None)),
        ({"retention.ms": "-1", "local.retention.ms": "-1"}, (None, None, None, None)),
        ({"local.retention.bytes": "0"}, (7 * DAY, None, 7 * DAY, 0)),
        ({"cleanup.policy": "compact"}, (7 * DAY, None, None, None)),
        ({"cleanup.policy": "", "local.retention.ms": "1h"}, (7 * DAY, None, DAY // 24, None)),
    ],
)
def test_retention_of_minus_one_is_unlimited_and_local_minus_two_follows_it(
    settings: dict[str, str], expected: tuple[object, ...]
) -> None:
    rules = resolve_rules(settings)
    found = (rules.retention_ms, rules.retention_bytes, rules.local_retention_ms, rules.local_retention_bytes)
    assert found == expected


def test_compacted_topic_with_default_settings_has_no_retention_limits() -> None:
    rules = resolve_rules({"cleanup.policy": "compact"})
    assert (rules.log_limits.ms, rules.log_limits.bytes) == (None, None)
    assert (rules.local_limits.ms, rules.local_limits.bytes) == (None, None)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"retention.ms": "1h", "local.retention.ms": "2h"}, True),
        ({"retention.ms": "1h", "local.retention.ms": "1h"}, False),
        ({"retention.ms": "1h", "local.retention.ms": "-1"}, True),
        ({"retention.ms": "-1", "local.retention.ms": "2h"}, False),
        ({"retention.bytes": "10", "local.retention.bytes": "11"}, True),
        ({"retention.bytes": "10", "local.retention.bytes": "-1"}, True),
        ({"retention.bytes": "-1", "local.retention.bytes": "11"}, False),
        ({"remote.log.copy.disable": "true"}, False),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "7d"}, False),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "1h"}, True),
        ({"remote.log.copy.disable": "true", "local.retention.bytes": "1"}, True),
        ({"remote.copy.lag.ms": "2h", "local.retention.ms": "1h"}, True),
        ({"remote.copy.lag.ms": "1h", "local.retention.ms": "1h"}, False),
        ({"remote.copy.lag.ms": "8d"}, True),
        ({"remote.copy.lag.ms": "8d", "retention.ms": "-1"}, False),
        ({"remote.copy.lag.bytes": "8", "local.retention.bytes": "7"}, True),
    ],
)
def test_tiered_topic_refuses_local_retention_above_total_retention(settings: dict[str, str], refused: bool) -> None:
    resolve_rules(settings)  # without tiering no limit applies (kafka LogConfig.validateTopicLogConfigValues)
    tiered = {"remote.storage.enable": "true", **settings}
    if refused:
        with pytest.raises(InvalidRequest, match="contradicting settings, "):
            resolve_rules(tiered)
    else:
        resolve_rules(tiered)


def test_contradictory_settings_are_refused_when_the_file_is_loaded(write) -> None:
    with pytest.raises(InvalidRequest, match=r"local\.retention\.ms=864000000 retention\.ms=604800000"):
        Config.load(write("[remote]\nurl = 's3://b'\n[defaults]\n'local.retention.ms' = '10d'"))
    Config.load(write("[defaults]\n'local.retention.ms' = '10d'"))  # without a remote url the limit does not apply


@pytest.mark.parametrize(
    ("settings", "lag"),
    [
        ({}, (0, None)),
        ({"remote.copy.lag.ms": "-1", "local.retention.ms": "1h"}, (DAY // 24, None)),
        ({"remote.copy.lag.bytes": "-1", "local.retention.bytes": "9"}, (0, 9)),
        ({"remote.copy.lag.bytes": "0"}, (0, 0)),
        ({"remote.copy.lag.ms": "-1", "retention.ms": "-1"}, (None, None)),
    ],
)
def test_a_copy_lag_of_minus_one_follows_local_retention(settings: dict[str, str], lag: tuple[object, object]) -> None:
    rules = resolve_rules(settings)
    assert (rules.copy_lag_ms, rules.copy_lag_bytes) == lag


def test_log_settings_carry_the_topics_codec_and_its_level() -> None:
    settings = log_settings({"compression.type": "ZSTD", "compression.zstd.level": "9", "flush.messages": "7"})
    assert (settings.compression.name, settings.compression_level, settings.flush_messages) == ("ZSTD", 9, 7)
    assert log_settings({"compression.type": "gzip"}).compression_level is None
    assert log_settings({"cleanup.policy": "Compact, delete"}).is_compacted
    assert log_settings({"message.timestamp.type": "LogAppendTime"}).timestamp_type == 1


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_every_property_parses_its_default_and_is_documented(name: str) -> None:
    row = PROPERTIES[name]
    parse(name, row.default)
    assert row.doc.endswith(".")
    assert ENVIRONMENT[row.environment_variable] is row
    assert row.source is Source.KAFKA or any(
        word in name
        for word in (
            "remote",
            "append.",
            "batch",
            "log.dir.",
            "uncleanable",
            "without.key",
            "compaction.view.",
            "cost.",
            "clock.",
        )
    )


def test_secret_is_never_in_the_text_of_an_error(write) -> None:
    path = write("[remote]\nurl = 's3://user:hunter2@bucket'\noptions = { password = 'hunter2' }")
    with pytest.raises(InvalidRequest) as raised:
        Config.load(path)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(raised.value)


def test_several_log_directories_are_absolute_and_in_order(tmp_path) -> None:
    path = tmp_path / "tiered.toml"
    path.write_text('[local]\ndirs = ["b", "/elsewhere/a"]\ncordoned = ["b"]\n')
    config = Config.load(str(path))
    assert config.data_dirs == (str(tmp_path / "b"), "/elsewhere/a")
    assert (config.data_dir, config.cordoned_dirs) == (str(tmp_path / "b"), {str(tmp_path / "b")})
    instead = Config.load(str(path), environ={"TIERED_LOCAL_DIR": "/one"})
    assert (instead.data_dirs, instead.cordoned_dirs) == (("/one",), frozenset())
    assert Config.load(None).data_dirs == (Config.load(None).data_dir,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('dir = "a"\ndirs = ["b"]', "either dir or dirs"),
        ("dirs = []", "either dir or dirs"),
        ('dirs = "a"', "not a list"),
        ('dirs = ["a", ""]', "not a list"),
        ('dirs = ["a", "./a"]', "a log directory is repeated or inside another one"),
        ('dirs = ["a-b", "a", "a/b"]', "a log directory is repeated or inside another one"),
        (r'dirs = ["a\u0000", "b"]', "the name of a directory contains a zero byte"),
        (r'dir = "a\u0000"', "the name of a directory contains a zero byte"),
        ('dirs = ["a", "b"]\ncordoned = ["c"]', "cordoned names a directory that is not a log directory"),
    ],
)
def test_invalid_log_directories_are_refused(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "tiered.toml"
    path.write_text(f"[local]\n{text}\n")
    with pytest.raises(InvalidRequest, match=said):
        Config.load(str(path))


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("22:00-06:00", DailyWindow(start_ms=22 * HOUR, end_ms=6 * HOUR)),
        (" 00:30-24:00 ", DailyWindow(start_ms=HOUR // 2, end_ms=DAY)),
        ("00:00-24:00", ALL_DAY),
    ],
)
def test_a_copy_window_is_a_time_range_of_a_day(text: str, window: DailyWindow) -> None:
    assert parse("remote.copy.window", text) == window
    assert str(window) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "22:00", "22-06", "6:00-7:00", "06:00-06:00", "24:00-06:00", "00:00-24:01", "00:60-02:00", "at night"]
)
def test_a_malformed_copy_window_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a daily time range in UTC such as 22:00-06:00"):
        parse("remote.copy.window", text)
