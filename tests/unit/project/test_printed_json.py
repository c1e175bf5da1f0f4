"""JSON of every command is checked against its schema in every test (`printed_json`). The check finds violations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click
import json_schemas as schemas
import msgspec
import printed_json
import pytest
from small_place import make_place
from test_command_tree import leaves

from tiered.cli.main import invoke
from tiered.cli.render import Result, Struct
from tiered.cli.topics import topic
from tiered.node.topic_registry import Topic

FIELDS = topic.ListedTopic.__struct_fields__


def _listed_as(fields: tuple[str]) -> Callable[[Iterable[Topic]], Result]:
    """The result of `topic list` with the given fields in a row."""
    row = msgspec.defstruct("ListedTopic", [(name, object) for name in fields], bases=(Struct,))
    result = msgspec.defstruct("Topics", [("topics", list[row])], bases=(Result,))
    values = {"partitions": 1, "topic_id": "id", "settings": {}, "Settings": {}, "extra": None}
    return lambda topics: result([row(**{name: values.get(name, each.name) for name in fields}) for each in topics])


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize(
    "fields",
    [(*FIELDS, "extra"), FIELDS[:-1], (*FIELDS[:-1], "Settings")],
    ids=["one-more", "one-less", "another-name"],
)
def test_field_outside_the_schema_is_reported_in_any_test(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
    fields: tuple[str],
) -> None:
    place = ["-q", "-C", str(tmp_path)]
    assert invoke([*place, "init", str(tmp_path), "--no-probe"]) == 0
    assert invoke([*place, "topic", "create", "orders", "-o", form]) == 0
    assert printed_json.take_wrong() == []
    monkeypatch.setattr(topic, "_listed", _listed_as(fields))
    assert invoke([*place, "topic", "list", "-o", form]) == 0
    assert capsys.readouterr().out.count("orders") == 2
    (wrong,) = printed_json.take_wrong()
    assert wrong.startswith("tiered topic list: ")


def test_value_of_another_type_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["-q", "-C", str(tmp_path)]
    assert invoke([*place, "init", str(tmp_path), "--no-probe"]) == 0
    assert invoke([*place, "topic", "create", "orders"]) == 0
    listed = lambda topics: topic.Topics([topic.ListedTopic(each.name, "1", each.topic_id, {}) for each in topics])  # noqa: E731
    monkeypatch.setattr(topic, "_listed", listed)
    assert invoke([*place, "topic", "list", "-o", "json"]) == 0
    (wrong,) = printed_json.take_wrong()
    assert "Expected `int`, got `str`" in wrong
    capsys.readouterr()


def test_every_command_that_prints_json_has_schemas() -> None:
    asked = {words for words, command in leaves() if _prints_json(command)}
    assert asked | {"config export"} == set(schemas.COMMANDS)  # with --format json
    assert len(asked) > 45


def _prints_json(command: click.Command) -> bool:
    choices = [
        each.type.choices for each in command.params if isinstance(each.type, click.Choice) and "-o" in each.opts
    ]
    return any({"json", "jsonl"} & set(each) for each in choices)


def test_every_schema_belongs_to_a_command_a_file_or_the_progress_lines() -> None:
    of_commands = {name for names in schemas.COMMANDS.values() for name in names}
    others = {"progress", "cost-advise-plan"}
    assert of_commands | others == set(schemas.SCHEMAS)
    assert not others & of_commands


# Schema -> a command that prints it in a small place. The order gives each command something to print.
LINES: Mapping[str, str] = {
    "topic": "topic list",
    "topic-describe": "topic describe orders",
    "topic-describe-settings": "topic describe orders --settings",
    "topic-create-dry-run": "topic create new --dry-run",
    "topic-alter-dry-run": "topic alter orders -X retention.ms=1h --dry-run",
    "topic-delete-dry-run": "topic delete orders --dry-run",
    "get-offsets": "get-offsets",
    "group-list": "group list",
    "group-reset-offsets": "group reset-offsets readers orders --to earliest --yes",
    "group-describe": "group describe readers",
    "verify": "verify data",
    "verify-remote": "verify --remote --sample 50%",
    "doctor": "doctor",
    "config-explain": "config explain retention.ms",
    "config-lint": "config lint",
    "config-export": "config export --format json",
    "log-dirs": "log-dirs",
    "log-dirs-partitions": "log-dirs -p",
    "log-dirs-move": "log-dirs move orders/0 --to second --dry-run",
    "transactions": "transactions list",
    "status": "status --section sync,local",
    "status-partitions": "status -p",
    "status-history": "status --history 1d",
    "cost-show": "cost show",
    "cost-simulate": "cost simulate orders --retention 7d --rate orders=1GiB/d",
    "cost-advise": "cost advise",
    "plan": "plan --at +8d",
    "plan-summary": "plan --at +8d --summary",
    "compaction-status": "compaction status",
    "compaction-runs": "compaction status --runs 5",
    "compaction-metrics": "compaction status --metrics",
    "compaction-advise": "compaction advise",
    "view-status": "view status",
    "view-build-dry-run": "append keyed lines -K : --batch 10; run --once; view build keyed --dry-run",
    "view-build": "view build keyed",
    "view-drop-dry-run": "view drop keyed --dry-run",
    "dump-batches": "dump orders/0 --batches",
    "dump-records": "dump orders/0 --deep-iteration",
    "dump-hex": "dump orders/0 --hex -n 1",
    "dump-index": "dump log/*/*.index",
    "dump-timeindex": "dump log/*/*.timeindex",
    "dump-txnindex": "dump log/*/*.txnindex",
    "dump-snapshot": "dump log/*/*.snapshot",
    "dump-leader-epochs": "dump data/orders-0/leader-epoch-checkpoint",
    "dump-checkpoint": "dump data/recovery-point-offset-checkpoint",
    "dump-properties": "dump data/orders-0/partition.metadata",
    "dump-indexes": "dump bucket/orders-*/0/data/*.indexes",
    "dump-head": "dump bucket/orders-*/0/meta/head/*",
    "dump-head-section": "dump bucket/orders-*/0/meta/head/* --section unlinked",
    "scrub": "scrub",
    "repair": "repair report.json --dry-run",
    "gc": "gc",
    "gc-delete": "gc --delete --older-than 0s --yes",
    "remote-ls": "remote ls file://{home}/bucket",
    "import-dry-run": "import file://{home}/theirs --remote file://{home}/other --layout logs --dry-run",
    "import": "import file://{home}/theirs --remote file://{home}/other --layout logs --yes",
    "restore-dry-run": "restore orders --to restored --dry-run",
    "restore": "restore orders --to restored --yes",
    "fork": "fork orders branch --yes",
    "rewrite-dry-run": "rewrite merge orders --dry-run",
    "rewrite": "rewrite merge orders --yes",
    "rewrite-redact-dry-run": "rewrite redact orders --key-file keys --dry-run",
    "rewrite-redact": "rewrite redact orders --key-file keys --yes",
    "rewrite-redact-verify": "rewrite redact orders --key-file keys --verify",
    "rewrite-copy": "rewrite copy orders --to file://{home}/copy --yes",
    "pipeline-plan": "pipeline plan --spark none",
    "pipeline-run": "pipeline run --spark none --yes",
    "backfill-dry-run": "backfill orders --to file://{home}/other --dry-run",
    "bench-dry-run": "bench --remote --size 1MiB --dry-run",
    "compact-dry-run": "compact keyed --dry-run",
    "compact-bucket-dry-run": "compact keyed --bucket --dry-run",
    "compact-bucket": "compact keyed --bucket",
    "compact": "compact keyed",
    "append": "append orders lines -K :",
    "delete-records": "delete-records orders/0 --before 5 --yes",
    "pause": "pause orders --reason night",
    "apply": "plan --out fresh.json; apply fresh.json --yes",
    "rotate-keys": "rotate-keys",
    "adopt": "adopt data -X cleanup.policy=delete --dry-run",
}
# Schemas tested elsewhere: slow, with Spark, with a topic that needs advice, or not printed as rows.
ELSEWHERE: Mapping[str, str] = {
    "bench": "tests/unit/tiered/bench/test_benchmark.py",
    "demo": "tests/integration/test_demo.py",
    "backfill": "tests/spark/test_spark_jobs.py",
    "apply-advice": "tests/unit/tiered/cost/test_cost_pages.py",
}
ASIDE = frozenset(("consume-line", "dump-records-line", "placement"))  # tested below


def test_each_command_prints_json_of_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_place(tmp_path)
    (tmp_path / "copy").mkdir()
    missed = []
    for name, lines in LINES.items():
        *before, line = lines.split("; ")
        assert [invoke(["-q", *shlex.split(each)]) for each in before] == [0] * len(before)
        printed_json.seen.clear()
        words = [_found(tmp_path, word.format(home=tmp_path)) for word in shlex.split(line)]
        capsys.readouterr()
        code = invoke(["-q", *words, *([] if "--format" in words else ["-o", "json"])])
        told = capsys.readouterr()
        if name not in printed_json.seen or code not in (0, 3):
            missed.append((line, code, told.out[:300], told.err[:300], sorted(printed_json.seen)))
    assert not missed, "\n".join(map(str, missed))
    of_commands = {name for names in schemas.COMMANDS.values() for name in names}
    assert sorted([*LINES, *ELSEWHERE, *ASIDE]) == sorted(of_commands)
    root = Path(__file__).parents[3]
    assert [name for name, path in ELSEWHERE.items() if f'SCHEMAS["{name}"]' not in (root / path).read_text()] == []


def _found(home: Path, word: str) -> str:
    """The largest file that matches a pattern."""
    return str(max(home.glob(word), key=lambda path: path.stat().st_size)) if "*" in word else word


def test_json_of_consume_dump_and_placement_matches_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["-q", "init", ".", "--no-probe"]) == 0
    assert invoke(["-q", "topic", "create", "orders"]) == 0
    first = {"key": "k", "value": {"base64": "/w=="}, "headers": [{"key": "h", "value": None}]}
    lines = [first, {"key": None, "value": "v"}, {"key": {"base64": "/w=="}, "value": None}]
    (tmp_path / "lines").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert invoke(["-q", "append", "orders", "lines", "--jsonl"]) == 0
    for line, name, count in (
        ("consume orders/0 -o jsonl", "consume-line", 3),
        ("dump orders/0 --records", "dump-records-line", 3),
        ("dump orders/0 -o jsonl", "dump-records-line", 3),
        ("placement --brokers 0,1 -p 2 -r 2 -o json", "placement", 1),
    ):
        capfdbinary.readouterr()
        assert invoke(shlex.split(line)) == 0
        told = capfdbinary.readouterr().out.splitlines()
        assert len(told) == count
        for each in told:
            msgspec.json.decode(each, type=schemas.SCHEMAS[name])
