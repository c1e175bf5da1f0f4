"""Every command that changes something has `--dry-run`, and a dry run changes nothing.
A new command must be added to one of the three tables below."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
import pytest
from small_place import make_place
from test_command_tree import leaves

from tiered.cli.main import invoke

# Commands without changes, except files that the user asks for (reports, lists, pages).
LOOKING = frozenset(
    (
        *("doctor", "topic list", "topic describe", "consume", "dump", "scrub", "remote ls", "pipeline plan"),
        *("get-offsets", "transactions list", "status", "cost show", "cost simulate", "cost advise", "cost prices"),
        *("plan", "compaction status", "compaction advise", "view status", "log-dirs", "placement", "web", "serve"),
        *("group list", "group describe"),
        *("generate grafana", "generate alerts", "generate systemd", "generate completion", "completion"),
        *("config explain", "config lint", "config export"),
    )
)

# Commands that change something and have no --dry-run, with the reason.
EXCEPTIONS = {
    "credentials": "it changes one user of a file, which its arguments name",
    "append": "its input says all that it would do, and where a record goes hangs on those before it; a topic and a "
    "partition that are not there are refused before the first line is read",
    "demo": "it makes a folder of its own, refuses every other one, and is looked at by running it",
}

# Commands with --dry-run and the arguments of the test.
CHANGING = {
    "init": "init new --remote file:///nowhere",
    "topic create": "topic create new -p 2",
    "topic alter": "topic alter orders -X retention.ms=1h -X segment.ms=1m",
    "topic add-partitions": "topic add-partitions orders 8",
    "topic delete": "topic delete orders",
    "verify": "verify --fix-index",
    "repair": "repair report.json",
    "gc": "gc --delete --older-than 0s",
    "adopt": "adopt data -X cleanup.policy=delete",
    "restore": "restore orders --to restored",
    "fork": "fork orders branch",
    "import": "import file://{home}/theirs --remote file://{home}/other --layout logs",
    "rewrite merge": "rewrite merge orders",
    "rewrite recode": "rewrite recode orders --codec zstd",
    "rewrite copy": "rewrite copy orders --to file://{home}/other",
    "rewrite redact": "rewrite redact orders --key-file keys",
    "pipeline run": "pipeline run --spark none",
    "backfill": "backfill orders --to file://{home}/other",
    "delete-records": "delete-records orders/0 --before 5",
    "group reset-offsets": "group reset-offsets readers orders --to earliest",
    "transactions end": "transactions end open/0 --producer-id 7 --abort",
    "compact": "compact keyed",
    "view build": "view build keyed",
    "view drop": "view drop keyed",
    "log-dirs move": "log-dirs move orders/0 --to second",
    "apply": "apply --auto",
    "pause": "pause orders --reason night",
    "resume": "resume",
    "run": "run --once",
    "rotate-keys": "rotate-keys",
    "bench": "bench --remote --size 1MiB",
    "generate iam-policy": "generate iam-policy --remote s3://bucket/prefix",
    "generate lifecycle": "generate lifecycle --remote s3://bucket/prefix",
}

# Commands that cannot be undone need a confirmation, unless they apply a saved plan.
CONFIRMED = frozenset(
    (
        *(
            "topic alter",
            "topic delete",
            "repair",
            "gc",
            "restore",
            "fork",
            "import",
            "rewrite merge",
            "rewrite recode",
        ),
        *(
            "rewrite copy",
            "rewrite redact",
            "pipeline run",
            "delete-records",
            "group reset-offsets",
            "transactions end",
            "view drop",
            "apply",
            "bench",
        ),
    )
)
_OTHER_SPELLINGS = (
    "--dryrun",
    "--dry",
    "--noop",
    "--no-op",
    "--simulate",
    "--what-if",
    "--preview",
    "--pretend",
    "--no-act",
)


def options_of(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts if isinstance(each, click.Option)}


def test_every_command_is_read_only_or_has_a_dry_run_or_is_an_exception() -> None:
    known = {words: options_of(command) for words, command in leaves()}
    tables = [LOOKING, frozenset(EXCEPTIONS), frozenset(CHANGING)]
    assert set().union(*tables) == set(known)
    assert sum(map(len, tables)) == len(known), "a command is in two tables"
    for words in CHANGING:
        assert "--dry-run" in known[words], words
    for words in LOOKING | set(EXCEPTIONS):
        assert "--dry-run" not in known[words], words
    for words, options in known.items():
        assert options.isdisjoint(_OTHER_SPELLINGS), words
        assert ("--yes" in options) == (words in CONFIRMED), words
    assert all(len(why) > 40 for why in EXCEPTIONS.values())


def test_command_that_cannot_be_undone_needs_yes_without_a_terminal(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = everything(home)
    lines = {
        "topic delete orders": 2,
        "topic alter orders -X remote.storage.enable=false -X remote.log.delete.on.disable=true": 2,
        "delete-records orders/0 --before 5": 2,
        "view drop keyed": 2,
        "transactions end open/0 --producer-id 7 --abort": 2,
        "gc --delete": 2,
        "apply plan.json": 2,
        "bench --remote --size 1MiB": 2,
    }
    for line, code in lines.items():
        capfd.readouterr()
        assert invoke(shlex.split(line)) == code, line
        assert "--yes" in capfd.readouterr().err
    after = everything(home)
    kept = [path for path in before if path.endswith((".log", "topics.json")) or path.startswith("bucket")]
    assert [path for path in kept if before[path] != after.get(path)] == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("place")
    here = os.getcwd()
    os.chdir(home)
    try:
        make_place(home)
    finally:
        os.chdir(here)
    return home


@pytest.fixture
def home(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    return made


def everything(home: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(home)): path.read_bytes() if path.is_file() else None for path in home.rglob("*")}


@pytest.mark.parametrize("words", CHANGING)
def test_dry_run_changes_no_byte_of_either_tier(home: Path, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = everything(home)
    capfd.readouterr()
    code = invoke([*shlex.split(CHANGING[words].format(home=home)), "--dry-run"])
    told = capfd.readouterr()
    assert code in (0, 3), told.err
    assert told.out or told.err
    assert everything(home) == before
