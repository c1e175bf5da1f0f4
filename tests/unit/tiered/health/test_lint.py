"""`tiered config lint`: every mistake of a directory's settings at once, each with file and line.
Settings that may be intended have no finding."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from local.errors import InvalidRequest, NotFound
from local.verify.findings import Finding, Severity
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.config.properties import BROKER_NAMES, DEFAULTS, PROPERTIES, broker_only, find_property
from tiered.health.broker_file import broker_settings, lint_broker_file, parse_entries, read_entries
from tiered.health.lint import RULES, Subject, hints, lint_place

TIERED = {"remote.storage.enable": "true"}
COMPACT = {**TIERED, "cleanup.policy": "compact"}
IA = {**TIERED, "remote.storage.class": "STANDARD_IA"}

# (settings, key that the finding names, part of its text), in the order of the rules.
BITES = (
    ({**TIERED, "retention.ms": "1d"}, "segment.ms", "a slow topic retains records for the sum of both"),
    ({"retention.bytes": "1MiB"}, "segment.bytes", "retention.bytes=1.00 MiB is less than one segment, 1.00 GiB"),
    ({**TIERED, "local.retention.bytes": "1MiB"}, "segment.bytes", "local.retention.bytes=1.00 MiB is less"),
    ({**TIERED, "segment.bytes": "512KiB"}, "segment.bytes", "requests will cost more than storage"),
    ({**TIERED, "segment.bytes": "16MiB", "segment.ms": "1d", "retention.ms": "1d"}, "segment.bytes", "requests will"),
    (
        {**IA, "segment.bytes": "64KiB", "retention.ms": "90d"},
        "segment.bytes",
        "bills 128 KiB for each object at least",
    ),
    ({**IA, "retention.ms": "7d"}, "remote.storage.class", "bills 30 days at least, and retention.ms=7d is shorter"),
    ({**IA, **COMPACT}, "remote.storage.class", "and compaction replaces segments earlier"),
    ({**TIERED, "remote.log.delete.grace.ms": "1m"}, "remote.log.delete.grace.ms", "reads without a pin"),
    ({**COMPACT, "retention.ms": "90d"}, "retention.ms", "has no effect: cleanup.policy=compact expires nothing"),
    ({"local.retention.ms": "1h"}, "local.retention.ms", ""),
    ({"remote.compression": "zstd"}, "remote.compression", ""),
    (
        {**COMPACT, "min.cleanable.dirty.ratio": "1"},
        "min.cleanable.dirty.ratio",
        "so no segment is copied to the bucket",
    ),
    (
        {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "7d"},
        "min.compaction.lag.ms",
        "records expire before they may be compacted",
    ),
    (
        {**COMPACT, "min.compaction.lag.ms": "2d", "local.retention.ms": "1d"},
        "min.compaction.lag.ms",
        "so the disk retains more",
    ),
    (
        {**TIERED, "remote.copy.window": "22:00-06:00", "local.retention.ms": "6h"},
        "remote.copy.window",
        "closed for longer than local.retention.ms=6h",
    ),
    ({"remote.copy.window": "22:00-06:00"}, "remote.copy.window", "the topic is not tiered"),
    (
        {**COMPACT, "remote.copy.lag.ms": "2d"},
        "delete.retention.ms",
        "tombstones are removed before the bucket has them",
    ),
    ({"max.message.bytes": "2MiB", "segment.bytes": "1MiB"}, "max.message.bytes", "no batch of that size fits"),
    (
        {**TIERED, "remote.compression": "zstd", "compression.type": "zstd"},
        "remote.compression",
        "records are compressed twice for a few percent",
    ),
    (
        {"log.dir.relief.free.bytes.min": "32MiB"},
        "log.dir.relief.free.bytes.min",
        "appends are refused before segments are dropped early",
    ),
)
SOUND = (
    {},
    TIERED,
    COMPACT,
    {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "30d", "local.retention.ms": "6h"},
    {**TIERED, "retention.ms": "-1", "local.retention.bytes": "10GiB", "segment.bytes": "256MiB"},
    {**IA, "retention.ms": "1w", "segment.ms": "1d", "remote.storage.class": "default"},
    {**COMPACT, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1d"},
    {**TIERED, "remote.compression": "zstd", "compression.type": "lz4"},
    {**TIERED, "remote.copy.window": "22:00-06:00", "local.retention.ms": "16h"},
    {"log.dir.relief.free.bytes.min": "0"},
)


def hinted(settings: dict[str, str]) -> list[tuple[str, str]]:
    effective = Config.load(None, settings, {}).explain("")
    return [(each.key, each.what) for each in hints(Subject.of("", {each.name: each for each in effective}))]


@pytest.mark.parametrize(("settings", "key", "words"), BITES)
def test_lint_rule_reports_its_setting(settings: dict[str, str], key: str, words: str) -> None:
    assert [what for found, what in hinted(settings) if found == key and words in what], hinted(settings)


def test_every_lint_rule_has_a_case_that_triggers_it() -> None:
    silent = {rule.code for rule in RULES}
    for settings, _, _ in BITES:
        effective = {each.name: each for each in Config.load(None, settings, {}).explain("")}
        silent -= {each.code for each in hints(Subject.of("", effective))}
    assert not silent


@pytest.mark.parametrize("settings", SOUND)
def test_sound_settings_have_no_lint_finding(settings: dict[str, str]) -> None:
    assert hinted(settings) == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["-q", "init"]) == 0
    assert invoke(["-q", "topic", "create", "orders"]) == 0
    assert invoke(["-q", "topic", "create", "bills", "-X", "local.retention.ms=1d"]) == 0
    return tmp_path


def written(home: Path, text: str) -> list[Finding]:
    (home / "tiered.toml").write_text(text)
    return lint_place("tiered.toml")


MANIFEST = '[remote]\nurl = "file:///tmp/no-such-bucket"\n[defaults]\n"remote.storage.enable" = true\n'  # four lines


@pytest.mark.parametrize(
    ("text", "where", "key", "what", "step"),
    [
        ('"retenton.ms" = "1d"', 5, "retenton.ms", "did you mean retention.ms?", "write retention.ms"),
        ('# so\n"retention.ms" = "1 day"', 6, "retention.ms", "a duration such as 7d", "config explain retention.ms"),
        ('"segment.bytes" = 1', 5, "segment.bytes", "at least 1024", "config explain segment.bytes"),
        (
            "retention.ms = 5",
            5,
            "retention.ms",
            "TOML reads a name with dots and without quotes as a table",
            'write it as "retention.ms" = ...',
        ),
        ('"log.retention.hours" = 5', 5, "log.retention.hours", "Kafka brokers", "write retention.ms"),
        ("[default]", 5, "default", "unknown section: default; did you mean defaults?", "write defaults"),
        ('[local]\ndirr = "x"', 6, "dirr", "unknown key of [local]: dirr; did you mean dir?", "write dir"),
        (
            '[topics."o*"]\n\n"log.cleaner.threads" = 2',
            7,
            "log.cleaner.threads",
            "belongs to the manager",
            "move it to [defaults]",
        ),
        ('[topics]\norders = "x"', 6, "orders", "topics.orders is not a table", 'write it as [topics."orders"]'),
        ('"retention.ms = 5', 5, "", "invalid TOML", "names with dots need quotes"),
        (
            '[topics."ordres"]\n"retention.ms" = "9d"',
            5,
            "ordres",
            "matches no topic: bills, orders",
            "correct the name",
        ),
        (
            '"local.retention.ms" = "90d"',
            5,
            "local.retention.ms",
            "the disk would retain more than the log",
            "correct tiered.toml",
        ),
        ('[remote.options]\nsecret = "x"', 1, "", "looks like a secret", "correct tiered.toml"),
        ('"cost.prices" = "nowhere.json"', 5, "cost.prices", "does not exist", "correct tiered.toml"),
        ('"remote.fetch.cache.dir" = "data/c"', 5, "remote.fetch.cache.dir", "inside a log directory", "correct"),
        ('"remote.log.delete.grace.ms" = 0', 5, "remote.log.delete.grace.ms", "lose their objects", "-X remote.log"),
    ],
)
def test_lint_finding_names_file_line_key_and_next_step(
    home: Path, text: str, where: int, key: str, what: str, step: str
) -> None:
    found = written(home, f"{MANIFEST}{text}\n")
    hits = [each for each in found if each.key == key and what in each.what]
    assert hits, found
    assert step in hits[0].next_step
    assert hits[0].where == f"tiered.toml:{where}"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3:/bucket", "the url has no bucket"),
        ("s3://", "the url has no bucket"),
        ("s4://bucket", "schemes=s3"),
        ("/mnt/bucket", "write=file:///directory"),
        ("file://bucket", "an absolute path"),
        ("s3://bucket/a?b=c", "the url is not the url of a store"),
    ],
)
def test_invalid_url_is_reported_without_opening_it(home: Path, url: str, what: str) -> None:
    (found,) = [each for each in written(home, f'[remote]\nurl = "{url}"\n') if each.key == "url"]
    assert (found.severity, found.where) == (Severity.ERROR, "tiered.toml:2")
    assert what in found.what


def test_all_mistakes_are_reported_at_once_and_each_once_for_many_topics(home: Path) -> None:
    found = written(home, f'{MANIFEST}"retenton.ms" = 1\n"segmnt.bytes" = 1\n[defalts]\n[topics."*"]\n"x" = 1\n')
    assert [each.where.rpartition(":")[2] for each in found] == ["5", "6", "7", "9"]
    (one,) = written(home, f'{MANIFEST}[topics."*"]\n"remote.log.delete.grace.ms" = "1m"\n')
    assert (one.topics, one.where) == ((), "tiered.toml:6")
    (one,) = written(home, f'{MANIFEST}[topics."?*"]\n"remote.log.delete.grace.ms" = "1m"\n')
    assert (one.topics, one.where) == (("bills", "orders"), "tiered.toml:6")


def test_topic_section_is_reported_when_the_topic_overrides_it(home: Path) -> None:
    assert invoke(["topic", "alter", "orders", "-X", "retention.ms=90d"]) == 0
    (found,) = written(home, f'{MANIFEST}[topics.orders]\n"retention.ms" = "10d"\n')
    assert (found.severity, found.where, found.key) == (Severity.WARNING, "tiered.toml:6", "retention.ms")
    assert "has no effect: the topic has its own retention.ms=90d" in found.what
    assert found.topics == ("orders",)
    assert not written(home, f'{MANIFEST}[topics.orders]\n"retention.ms" = "2160h"\n'), "the same value in another unit"
    assert not written(home, f'{MANIFEST}[topics."order*"]\n"retention.ms" = "10d"\n'), (
        "the pattern matches several topics"
    )


def test_lint_checks_topic_settings_environment_and_command_line(home: Path) -> None:
    (own,) = lint_place("tiered.toml", overrides={"retention.ms": "1h", "segment.ms": "10m"})
    assert (own.severity, own.where, own.topics) == (Severity.ERROR, "topic bills", ("bills",))
    assert not lint_place("tiered.toml", overrides={"retention.ms": "1h", "segment.ms": "10m"}, topics=["orders"])
    (found,) = lint_place("tiered.toml", environ={"TIERED_RETENTION_MS": "x"})
    assert found.where == "environment TIERED_RETENTION_MS"
    (found,) = lint_place("tiered.toml", overrides={"retenton.ms": "1"})
    assert found.where == "-X"
    with pytest.raises(NotFound):
        lint_place("tiered.toml", topics=["nobody"])
    with pytest.raises(NotFound):
        lint_place("elsewhere.toml")


def test_lint_command_exits_3_with_findings_in_every_output_format(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert invoke(["config", "lint"]) == 0
    assert "no problems found" in capfd.readouterr().err
    (home / "tiered.toml").write_text(f'{MANIFEST}"retenton.ms" = 1\n')
    assert invoke(["config", "lint", "-o", "json"]) == 3
    body = json.loads(capfd.readouterr().out)
    assert body["schema_version"] == 1
    assert set(body["findings"][0]) == {"severity", "where", "key", "what", "next_step", "topics", "code"}
    assert invoke(["config", "lint"]) == 3
    assert "tiered.toml:5" in capfd.readouterr().out
    assert invoke(["-C", "elsewhere", "config", "lint"]) == 1


BROKER = "node.id=1\nlog.dirs=/kafka\nnum.network.threads=3\n"  # three lines


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("log.retention.hour=5", 4, "log.retention.hour", "did you mean log.retention.hours?"),
        ("log.cleaner.enabel=5", 4, "log.cleaner.enabel", "did you mean log.cleaner.enable?"),
        ("log.nothing.of.the.kind=5", 4, "log.nothing.of.the.kind", "unknown key"),
        ("compresion.type=lz4", 4, "compresion.type", "did you mean compression.type?"),
        ("log.segment.bytes=1GiB", 4, "log.segment.bytes", "a bare number of bytes"),
        ("log.roll.hours=1d", 4, "log.roll.hours", "a bare number of hours"),
        ("log.cleaner.min.cleanable.ratio=2", 4, "log.cleaner.min.cleanable.ratio", "at most 1"),
        ("retention.ms=5", 4, "retention.ms", "did you mean log.retention.ms?"),
        ("log.retention.hours=1\nlog.retention.ms=2", 4, "log.retention.hours", "log.retention.ms in line 5"),
        ("log.segment.bytes=2048\nlog.segment.bytes=4096", 4, "log.segment.bytes", "line 5 overrides it"),
        ("remote.log.storage.system.enable=true", 4, "remote.log.storage.system.enable", "does not start"),
        (
            "remote.log.storage.system.enable=true\nremote.log.storage.manager.class.name=x\n\\\n"
            "log.cleanup.policy=compact",
            6,
            "cleanup.policy",
            "refuse remote.storage.enable=true on compacted topics",
        ),
        (
            "remote.log.storage.system.enable=true\nremote.log.storage.manager.class.name=x\n"
            "log.retention.hours=1\nlog.local.retention.ms=7200000",
            7,
            "log.local.retention.ms",
            "the disk would retain more than the log",
        ),
        ("log.retention.bytes=4096", 4, "segment.bytes", "less than one segment"),
    ],
)
def test_lint_reads_a_broker_file_as_kafka_does(tmp_path: Path, text: str, line: int, key: str, words: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(BROKER + text + "\n")
    found = lint_broker_file(str(path))
    assert [each for each in found if each.key == key and words in each.what and each.where == f"{path}:{line}"], found


def test_kafkas_example_of_a_broker_file_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# The role of this server\nprocess.roles=broker,controller\nnode.id=1\n"
        "controller.quorum.bootstrap.servers=localhost:9093\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
        "inter.broker.listener.name=PLAINTEXT\nadvertised.listeners=PLAINTEXT://localhost:9092\n"
        "controller.listener.names=CONTROLLER\nnum.network.threads=3\nnum.io.threads=8\n"
        "socket.send.buffer.bytes=102400\nlog.dirs=/tmp/kraft-combined-logs\nnum.partitions=1\n"
        "num.recovery.threads.per.data.dir=1\noffsets.topic.replication.factor=1\n"
        "transaction.state.log.min.isr=1\n#log.flush.interval.messages=10000\nlog.retention.hours=168\n"
        "log.segment.bytes=1073741824\nlog.retention.check.interval.ms=300000\n"
    )
    assert lint_broker_file(str(path)) == []
    assert broker_settings(read_entries(str(path))) == {
        "num.recovery.threads.per.data.dir": "1",
        "remote.log.manager.task.interval.ms": "300000",
        "retention.ms": str(7 * 86_400_000),
        "segment.bytes": "1073741824",
    }


def test_properties_are_parsed_as_java_does() -> None:
    text = "! no\n  a = 1 \nb:2\nc 3\nd=x\\\n   y\n\ne\\ f=\\tq\\\\\ng\nh==i\n"
    assert [(each.line, each.name, each.value) for each in parse_entries(text)] == [
        (2, "a", "1"), (3, "b", "2"), (4, "c", "3"), (5, "d", "xy"), (8, "e f", "\tq\\"), (9, "g", ""), (10, "h", "=i"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("log.retention.hour\\u0073=1\\u00368\n", [(1, "log.retention.hours", "168")]),
        ("a=\\ud83d\\ude00 \\u00e4\n", [(1, "a", "\U0001f600 ä")]),
        ("a=1,\\\n    2,\\\r\n\t3\nb=4", [(1, "a", "1,2,3"), (4, "b", "4")]),
        ("a=1\\", [(1, "a", "1")]),
        ("a=x\\\\\\\n\\\\\nb=2\n", [(1, "a", "x\\\\"), (3, "b", "2")]),
        ("a=1\\\n# no comment\nb=2\n", [(1, "a", "1# no comment"), (3, "b", "2")]),
        ("a=x\x0by\u2028z\n", [(1, "a", "x\x0by\u2028z")]),
        ("a\xa0b=1\n", [(1, "a\xa0b", "1")]),
        ("a : = 1\n", [(1, "a", "= 1")]),
    ],
)
def test_escapes_and_line_continuations_are_parsed_as_java_does(text: str, found: list[tuple[int, str, str]]) -> None:
    assert [(each.line, each.name, each.value) for each in parse_entries(text)] == found


def test_malformed_escape_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("a=1\nb=\\u12\n")
    with pytest.raises(InvalidRequest, match="four hex digits") as caught:
        read_entries(str(path))
    assert (caught.value.facts["file"], caught.value.facts["line"]) == (str(path), 2)


def test_latin_1_comment_is_read_and_a_binary_file_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes("# für alle\nlog.retention.hours=1\n".encode("iso-8859-1"))
    assert [each.name for each in read_entries(str(path))] == ["log.retention.hours"]
    path.write_bytes(b"\x7fELF\0\0")
    with pytest.raises(InvalidRequest, match="it is not text"):
        read_entries(str(path))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("log.retention.hours=-5\n", "key=log.retention.hours value='-5'"),
        ("log.cleanup.policy=shred\n", "key=log.cleanup.policy value='shred'"),
        ("log.retention.ms=7d\n", "key=log.retention.ms"),
        (
            "log.retention.hours=1\nlog.local.retention.ms=9999999999\n",
            "log.local.retention.ms=9999999999 log.retention.hours=1",
        ),
    ],
)
def test_error_in_a_broker_file_names_the_brokers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.properties").write_text(text)
    assert invoke(["-q", "init", "--properties", "server.properties"]) == 2
    assert named in capfd.readouterr().err
    found = [each.key for each in lint_broker_file("server.properties") if each.severity is Severity.ERROR]
    assert all(key.startswith("log.") for key in found)


def test_init_with_a_missing_store_directory_does_not_name_the_unwritten_config(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["-C", str(tmp_path), "init", "--remote", f"file://{tmp_path}/missing"]) == 1
    said = capfd.readouterr().err
    assert "correct the url of --remote" in said
    assert "tiered.toml" not in said


def test_init_with_properties_copies_the_settings_of_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.properties").write_text(BROKER + "log.retention.minutes=90\nlog.cleanup.policy=compact,delete\n")
    assert invoke(["-q", "init", "--properties", "server.properties"]) == 0
    values = Config.load("tiered.toml").topic_properties("")
    changed = {name: text for name, text in values.items() if text != DEFAULTS[name]}
    assert changed == {
        "remote.storage.enable": "true", "retention.ms": "5400000", "cleanup.policy": "compact,delete",
    }  # fmt: skip
    Path("server.properties").write_text("log.retention.ms=7d\n")
    assert invoke(["-q", "init", "other", "--properties", "server.properties"]) == 2
    with pytest.raises(InvalidRequest):
        broker_settings(read_entries("server.properties"))


# -- settings of a broker without effect


EXAMPLE = """process.roles=broker,controller
listeners=PLAINTEXT://:9092
num.io.threads=8
log.dirs=/tmp/kraft-combined-logs
log.cleaner.enable=true
log.retention.hours=168
log.retention.ms=86400000
log.retention.check.interval.ms=300000
remote.log.reader.threads=10
confluent.tier.feature=true
"""


def test_init_names_each_broker_setting_without_effect_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.properties").write_text(EXAMPLE)
    for more in (["--dry-run"], []):
        assert invoke(["init", "--no-probe", "--properties", "server.properties", *more]) == 0
        told = [each for each in capfd.readouterr().err.splitlines() if each.startswith("no effect: ")]
        assert [each.split()[2] for each in told] == [
            "process.roles", "listeners", "num.io.threads", "log.dirs", "log.cleaner.enable", "log.retention.hours",
            "remote.log.reader.threads", "confluent.tier.feature",
        ]  # fmt: skip
        assert "(server.properties:5): the cleaner always runs; use cleanup.policy, by topic" in told[4]
        assert "log.retention.ms in line 7 overrides it" in told[5]
        assert "it is not a setting of tiered" in told[7]
    values = Config.load("tiered.toml").topic_properties("")
    assert (values["retention.ms"], values["remote.log.manager.task.interval.ms"]) == ("86400000", "300000")


def test_task_interval_outranks_kafkas_retention_check_interval() -> None:
    texts = ["remote.log.manager.task.interval.ms=5000", "log.retention.check.interval.ms=300000"]
    for lines in (texts, texts[::-1]):
        assert broker_settings(list(parse_entries("\n".join(lines)))) == {"remote.log.manager.task.interval.ms": "5000"}


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("log.cleaner.enable", "the cleaner always runs"),
        ("num.network.threads", "the network requests of the broker"),
        ("log.dirs", "use dir or dirs in [local]"),
        ("log.retention.check.interval.ms", "did_you_mean=remote.log.manager.task.interval.ms"),
        ("remote.log.manager.task.intervall.ms", "did_you_mean=remote.log.manager.task.interval.ms"),
        ("log.cleaner.thread", "did_you_mean=log.cleaner.threads"),
    ],
)
def test_broker_setting_given_as_a_setting_is_refused_with_a_correct_hint(key: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_property(key)
    assert hint in str(caught.value)
    assert "did_you_mean" in hint or "did_you_mean" not in str(caught.value)


def test_no_own_setting_is_listed_as_without_effect() -> None:
    ours = {name for name in (*PROPERTIES, *BROKER_NAMES) if broker_only(name) is not None}
    assert ours == set()
    misspelt = {name for name in PROPERTIES if broker_only(f"{name}x") is not None}
    assert misspelt == set()
