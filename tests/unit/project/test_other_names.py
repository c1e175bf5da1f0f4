"""Commands as users of other tools type them: each runs, or its error names the right one."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import click
import pytest

from tiered.cli.main import COMMANDS, _in_order, invoke, main

NAMES = json.loads(files("tiered.cli").joinpath("other_names.json").read_text())
_COMMAND = re.compile(r"\btiered (?!COMMAND\b)(?:--?[a-z]+ )?([a-z][a-z-]+)(?: ([a-z][a-z-]+(?:\|[a-z-]+)*))?")
# What is typed, and a part of the error; None: it runs.
TYPED = {
    # rpk
    "rpk topic produce": ("topic produce orders", "No such command 'produce'"),
    "produce": ("produce orders", "tiered append TOPIC"),
    "rpk topic consume -o start": ("consume orders --offset start", "--from OFFSET"),
    "rpk topic create -p -r": ("topic create orders -p 3 -r 1", "No such option '-r'"),
    "rpk cluster info": ("cluster info", "tiered status"),
    "rpk cluster health": ("health", "tiered doctor"),
    "rpk group list": ("groups", "tiered group list"),
    "rpk acl create": ("acl create", "--security FILE"),
    "rpk security user create": ("user create", "tiered credentials"),
    "rpk version": ("version", "tiered --version"),
    "rpk registry schema list": ("registry schema list", "records pass as they are"),
    "rpk cluster storage mount": ("mount orders", "tiered serve --remote URL"),
    "rpk help": ("help consume", None),
    "rpk topic describe": ("help topic describe", None),
    "rpk topic alter-config": ("topic alter-config x --set a=b", "No such command 'alter-config'"),
    "rpk topic add-partitions": ("help topic add-partitions", None),
    # kcat
    "kcat": ("kcat -t orders", "tiered consume TOPIC"),
    "kcat -C -b": ("consume -b localhost:9092 orders", "-C DIR, --remote URL"),
    "kcat -t": ("consume -t orders", "TOPIC or TOPIC/PARTITION"),
    "kcat -p": ("consume orders -p 0", "TOPIC/PARTITION"),
    "kcat -c": ("consume orders -c 5", "-n COUNT"),
    "kcat -L": ("list", "tiered topic list"),
    "kcat -Q": ("offsets orders", "tiered get-offsets TOPIC"),
    "kcat -P": ("append -b x orders", "-C DIR, --remote URL"),
    "kcat -G": ("consume -g mine orders", "--group NAME"),
    # kafka-*.sh
    "kafka-topics --list": ("kafka-topics --list", "tiered topic create|alter"),
    "kafka-topics --create": ("topic create orders --replication-factor 3", "leave it out"),
    "kafka-topics --bootstrap-server": ("topic list --bootstrap-server x", "-C DIR"),
    "kafka-topics --describe": ("topic --describe", "tiered topic describe NAME"),
    "kafka-topics --delete": ("topic --delete", "tiered topic delete NAME"),
    "kafka-topics --alter": ("topic --alter", "tiered topic alter NAME"),
    "kafka-topics --topic": ("topic create --topic orders", "name the topic as an argument"),
    "kafka-console-consumer": ("kafka-console-consumer --topic orders", "tiered consume TOPIC"),
    "--from-beginning": ("consume orders --from-beginning", "--from start"),
    "--max-messages": ("consume orders --max-messages 3", "-n COUNT"),
    "--partition": ("consume orders --partition 0", "TOPIC/PARTITION"),
    "--property": ("consume orders --property print.key=true", "-f FORMAT"),
    "kafka-console-producer": ("kafka-console-producer --topic orders", "tiered append TOPIC"),
    "kafka-consumer-groups --list": ("group --list", "tiered group list"),
    "kafka-consumer-groups": ("kafka-consumer-groups --describe", "tiered group list"),
    "kafka-consumer-groups --all-groups": ("group list --all-groups", "shows all groups"),
    "kafka-configs": ("kafka-configs --alter", "tiered topic alter"),
    "kafka-get-offsets": ("kafka-get-offsets --topic x", "tiered get-offsets"),
    "kafka-dump-log": ("kafka-dump-log --files x", "tiered dump FILE"),
    "kafka-log-dirs": ("kafka-log-dirs --describe", "tiered log-dirs"),
    "kafka-delete-records": ("kafka-delete-records --offset-json-file x", "tiered delete-records"),
    "kafka-reassign-partitions": ("kafka-reassign-partitions --generate", "tiered log-dirs move"),
    "kafka-transactions": ("kafka-transactions list", "tiered transactions"),
    "kafka-acls": ("kafka-acls --list", "--security FILE"),
    "kafka-storage format": ("kafka-storage format", "tiered init DIR"),
    "kafka-server-start": ("kafka-server-start server.properties", "tiered run --kafka"),
    "--zookeeper": ("topic list --zookeeper x", "-C DIR"),
    # restic
    "restic init --repo": ("init x --repo y", "--remote URL"),
    "restic backup": ("backup /srv", "tiered run copies"),
    "restic snapshots": ("snapshots", "tiered fork"),
    "restic ls": ("ls latest", "tiered remote ls URL"),
    "restic check": ("check", "tiered scrub"),
    "restic forget": ("forget --keep-last 3", "retention.ms"),
    "restic prune": ("prune", "tiered gc"),
    "restic stats": ("stats", "tiered status"),
    "restic diff": ("diff a b", "tiered scrub"),
    "restic find": ("find x", "tiered get-offsets"),
    "restic unlock": ("unlock", "tiered doctor"),
    "restic key list": ("key list", "tiered rotate-keys"),
    "restic cat": ("cat config", "tiered consume TOPIC"),
    "restic copy": ("copy", "tiered rewrite copy"),
    "restic migrate": ("migrate", "tiered adopt"),
    "restic rebuild-index": ("rebuild-index", "tiered repair"),
    "restic cache": ("cache", "--cache-dir DIR"),
    "restic --json": ("-q status --json -C missing", "cannot find tiered.toml"),
    "restic help": ("help restore", None),
    # AWS CLI
    "aws s3 ls": ("ls s3://bucket", "tiered remote ls URL"),
    "aws s3 cp": ("cp a s3://b", "tiered rewrite copy"),
    "aws s3 sync": ("sync a b", "tiered run copies"),
    "aws s3 mb": ("mb s3://b", "create the bucket"),
    "aws s3 rm --recursive": ("rm s3://b --recursive", "tiered topic delete"),
    "aws --endpoint-url": ("backfill orders --to x --endpoint-url y", "--option endpoint_url=URL"),
    "aws --region": ("backfill orders --to x --region y", "AWS_REGION"),
    "aws --profile": ("backfill orders --to x --profile y", "AWS_PROFILE"),
    "aws help": ("help", None),
    "--bucket": ("scrub --bucket b", "--remote s3://BUCKET"),
    "--url": ("scrub --url s3://b", "--remote URL"),
    # in general
    "--help": ("--help", None),
    "-h behind": ("consume -h", None),
    "du": ("du", "tiered log-dirs"),
    "tail": ("tail orders", "--follow"),
    "read": ("read orders", "tiered consume"),
    "get": ("get orders", "tiered consume"),
    "put": ("put orders", "tiered append"),
    "write": ("write orders", "tiered append"),
    "create": ("create orders", "tiered topic create"),
    "create-topic": ("create-topic orders", "tiered topic create"),
    "delete-topic": ("delete-topic orders", "tiered topic delete"),
    "describe": ("describe orders", "tiered topic describe"),
    "export": ("export orders", "tiered backfill"),
    "sql": ("sql select", "query-with-arrow.md"),
    "lag": ("lag mine", "tiered group describe"),
    "top": ("top", "tiered web"),
    "ui": ("ui", "tiered web"),
    "start": ("start", "tiered run"),
    "stop": ("stop", "SIGTERM"),
    "metrics": ("metrics", "--metrics HOST:PORT"),
    "topics": ("topics", "tiered topic list"),
    "logs": ("logs", "tiered dump"),
    "man": ("man consume", "docs/reference/cli.md"),
    "a slip": ("consme orders", "did you mean consume?"),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_command_of_another_tool_runs_or_names_the_right_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line, hint = TYPED[name]
    code = invoke(line.split())
    out, err = capfd.readouterr()
    if hint is None:
        assert code == 0, err
        assert "Usage: tiered" in out
    else:
        assert code in (1, 2)
        assert hint in err
        assert err.count("\n") == 1


def test_there_are_a_hundred_of_them() -> None:
    assert len(TYPED) >= 100


def test_no_hint_hides_a_command_or_an_option_of_ours() -> None:
    assert not NAMES["commands"].keys() & COMMANDS.keys()


@pytest.mark.parametrize("kind", ["commands", "options"])
def test_every_command_that_a_hint_names_exists(kind: str) -> None:
    with click.Context(main, **main.context_settings) as context:
        for typed, hint in NAMES[kind].items():
            named = _COMMAND.findall(hint)
            assert named or "tiered" not in hint or "--" in hint or kind == "options", typed
            for name, words in named:
                if name in ("works", "in"):  # a sentence about the program
                    continue
                command = main.get_command(context, name)
                assert command is not None, (typed, hint)
                if isinstance(command, click.Group):
                    for word in filter(None, words.split("|")):
                        assert word in command.commands or word in ("for", "and"), (typed, hint)


def test_quiet_directory_and_json_may_stand_anywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "home")
    assert invoke(["init", directory, "-q"]) == 0
    capfd.readouterr()
    assert invoke(["topic", "create", "orders", "-q", "-C", directory]) == 0
    assert invoke(["topic", "list", "--json", "-C", directory]) == 0
    out, err = capfd.readouterr()
    assert "orders" in json.dumps(json.loads(out))
    assert err == ""


def test_every_option_that_a_hint_gives_a_command_exists() -> None:
    with click.Context(main, **main.context_settings) as context:
        for typed, hint in {**NAMES["commands"], **NAMES["options"]}.items():
            for part in re.findall(r"\btiered ((?:[^,;]|,(?! ))+)", hint):
                command: click.Command | None = main
                for word in part.split(" or ")[0].split(" beside ")[0].split():
                    options = [name for each in command.params for name in (*each.opts, "--help", "--version")]
                    assert not word.startswith("-") or word in options or word[1:].isdigit(), (typed, hint, word)
                    found = command.get_command(context, word) if isinstance(command, click.Group) else None
                    command = found or command


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("consume orders -f -q", "consume orders -f -q"),
        ("consume orders -f --json -C d", "-C d consume orders -f --json"),
        ("topic alter x -X -C", "topic alter x -X -C"),
        ("-X -q status", "-X -q status"),
        ("topic list --dir d", "--dir d topic list"),
        ("topic list --dir=d", "--dir=d topic list"),
        ("--json topic list orders", "topic list -o json orders"),
        ("--json -C d status -- --json", "-C d status -o json -- --json"),
        ("-q help status", "-q status --help"),
        ("-C d help topic list", "-C d topic list --help"),
        ("nope --json", "-o json nope"),
    ],
)
def test_values_of_options_stay_and_global_options_move(typed: str, read: str) -> None:
    assert _in_order(typed.split()) == read.split()


@pytest.mark.parametrize("line", ["topic list -C", "status --dir"])
def test_a_directory_that_is_missing_is_named(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(line.split()) == 2
    assert "requires a directory" in capfd.readouterr().err


@pytest.mark.parametrize("words", [["demo", "--dir", "x"], ["demo", "--dir=x"], ["-q", "demo", "--dir", "x"]])
def test_an_option_that_a_command_has_itself_stays_behind_it(words: list[str]) -> None:
    """`demo --dir` names a folder whose contents are deleted: as a global option the default one would be deleted."""
    assert _in_order(words) == words


def test_words_behind_two_dashes_stay_where_they_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["dump", "--", "--json"]) != 0
    assert "--json" in capfd.readouterr().err
