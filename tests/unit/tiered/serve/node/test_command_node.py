"""Commands with and without a running node: the same output and exit codes; nodes that start, end, die and refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from local.errors import AccessDenied, LogError, Unavailable
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.cli.main import invoke
from tiered.cli.session import Session, now_ms
from tiered.manager import remote_acks
from tiered.manager.manager import LogManager
from tiered.serve.commands import unix_socket
from tiered.serve.commands.operation_jobs import Work
from tiered.serve.commands.unix_socket import FILE, NodeSocket, connect
from tiered.serve.node import command_node, following, operations
from tiered.serve.node.command_node import RunningNode, find_node
from tiered.serve.node.endpoint import serving_node
from tiered.serve.node.following import Following
from tiered.serve.node.operations import CompactedTopic

SETUP = (
    "topic create plain",
    "topic create other -p 2 -X retention.ms=7d",
    "topic create keyed -X cleanup.policy=compact",
    "topic create timed -X message.timestamp.type=LogAppendTime -X remote.storage.enable=false",
    "append plain lines",
    "append keyed lines -K :",
)
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_TIME = re.compile(r'("\w*_ms": )\d+')
_DURATION = re.compile(r" *\b\d+ms\b")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with topics and records that each test copies."""
    home = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        Path("lines").write_text("".join(f"k{at % 7}:value {at}\n" for at in range(60)))
        assert invoke(["-q", "init"]) == 0
        Path("more").mkdir()
        text = Path("tiered.toml").read_text()
        assert 'dir = "data"' in text
        Path("tiered.toml").write_text(text.replace('dir = "data"', 'dirs = ["data", "more"]'))
        for words in SETUP:
            assert invoke(["-q", *words.split()]) == 0
    return home


@pytest.fixture
def home(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made(prepared, tmp_path / "home", monkeypatch)


def made(prepared: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, home)
    settings = home / "tiered.toml"
    settings.write_text(settings.read_text().replace(str(prepared), str(home)))
    monkeypatch.chdir(home)
    return home


@contextmanager
def running(home: Path) -> Iterator[LogManager]:
    """A node of the directory, in this process."""
    config = Session(directory=str(home)).config()
    with (
        closing(NodeSocket(config.data_dirs)) as own,
        LogManager.open(config, now_ms=now_ms()) as manager,
        serving_node(manager, None, 0, own=own, now_ms=now_ms),
    ):
        yield manager


COMMANDS = (
    "topic create new",
    "topic create a b -p 3 -X retention.ms=1d -o json",
    "topic create a plain",
    "topic create a -X retention=1d",
    "topic create a -p 0",
    "topic alter plain -X retention.ms=2d",
    "topic alter other -X retention.ms= -o json",
    "topic alter nope -X retention.ms=2d",
    "topic alter plain -X segment.bytes=1",
    "topic add-partitions other 5",
    "topic add-partitions keyed 2 -o json",
    "topic add-partitions other 1",
    "topic add-partitions nope 4",
    "topic delete other --yes",
    "topic delete other --yes -o json",
    "topic delete other",
    "topic delete nope --yes",
    "append plain lines",
    "append other lines -K : -o json",
    "append other/1 lines --batch 7 -o jsonl",
    "append timed lines",
    "append plain lines --compression zstd",
    "append plain lines --progress json",
    "append plain lines --acks remote",
    "append plain lines -K : --acks remote -o json",
    "append timed lines --acks remote",
    "append keyed lines --acks remote",
    "append keyed lines",
    "append plain lines --jsonl",
    "append nope lines",
    "append plain/5 lines",
    "delete-records plain/0 --before 7 --yes",
    "delete-records plain/0 --before -1 --yes -o json",
    "delete-records plain/0 --before 7",
    "delete-records plain/0 --before 61 --yes",
    "delete-records keyed/0 --before 7 --yes",
    "delete-records nope/0 --before 7 --yes",
    "compact keyed",
    "compact keyed --roll -o json",
    "compact keyed --roll --progress json -o json",
    "compact plain",
    "compact nope",
    "view build plain",
    "view build plain --name v -o json",
    "view build nope",
    "view build plain --name a/b",
    "view drop plain --yes",
    "log-dirs move plain/0 --to {target}",
    "log-dirs move plain/0 --to {target} --progress json",
    "log-dirs move plain/0 --to elsewhere",
    "log-dirs move nope/0 --to {target}",
    "group list",
    "group describe nope",
    "group reset-offsets readers plain --to earliest --yes",
    "group reset-offsets readers plain other/1 --to latest --yes -o json",
    "group reset-offsets readers plain --to @2001-01-01T00:00:00Z --dry-run",
    "group reset-offsets readers nope --to latest --yes",
    "group reset-offsets readers plain --to latest",
    "pause plain --reason tests -o json",
    "pause nope",
    "resume",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_the_same_with_and_without_a_running_node(
    command: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    made(prepared, alone, monkeypatch)
    expected = answer(alone, command, capfd)
    made(prepared, beside, monkeypatch)
    with running(beside):
        assert answer(beside, command, capfd) == expected


@pytest.mark.parametrize("command", ["append other lines -K :", "append other lines --batch 7", "append timed lines"])
def test_an_append_has_the_same_effect_with_and_without_a_running_node(
    command: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = []
    for name in ("alone", "beside"):
        home = made(prepared, tmp_path / name, monkeypatch)
        with running(home) if name == "beside" else nullcontext():
            assert invoke(command.split()) == 0
        capfd.readouterr()
        assert invoke(["consume", command.split()[1], "-f", "%p %o %k %v\\n"]) == 0
        found.append(capfd.readouterr().out)
        assert len(found[-1].splitlines()) == 60
    assert found[0] == found[1]


def test_an_input_that_waits_for_the_bucket_of_a_node_is_not_appended_twice(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise Unavailable("the bucket is away", store="file://")

    command = ["append", "plain", "lines", "--acks", "remote"]
    with running(home):
        with monkeypatch.context() as patch:
            patch.setattr(remote_acks, "wait_for_bucket", refuse)
            assert invoke(command) == 6
        assert "appends nothing twice" in capfd.readouterr().err
        assert invoke(command) == 0
        assert "appended by an earlier command: records=60" in capfd.readouterr().err
    assert invoke(["consume", "plain"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 120, "60 of the setup, 60 once"


def answer(home: Path, command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, without what differs between two runs."""
    held = next(each for each in ("data", "more") if (home / each / "plain-0").exists())
    target = "more" if held == "data" else "data"
    capfd.readouterr()
    code = invoke(command.format(target=target).split())
    out, said = capfd.readouterr()
    return code, plain(out, home), plain("".join(events_removed(said)), home).replace(f"/{target}", "/target")


def events_removed(said: str) -> Iterator[str]:
    """The lines, of the progress only the last state: the number of events depends on the time."""
    for line in said.splitlines(keepends=True):
        if '"kind": "progress"' not in line or '"is_last": true' in line:
            yield re.sub(r'"(rate_per_second|eta_ms)": [^,]+', r'"\1": ?', line)


def plain(text: str, home: Path) -> str:
    text = _DURATION.sub(" ?ms", text)
    return _TIME.sub(r"\1?", _TOPIC_ID.sub("?", text.replace(str(home), "HOME")))


def test_commands_change_the_node_that_runs(home: Path) -> None:
    with running(home) as manager:
        assert invoke(["topic", "create", "new", "-p", "3"]) == 0
        assert manager.topics.get("new").partition_count == 3
        assert invoke(["topic", "add-partitions", "new", "4"]) == 0
        assert manager.topics.get("new").partition_count == 4
        assert invoke(["topic", "alter", "new", "-X", "retention.ms=1d"]) == 0
        assert manager.topics.get("new").properties == {"retention.ms": "1d"}
        assert invoke(["topic", "delete", "new", "--yes"]) == 0
        assert "new" not in {each.name for each in manager.topics.all()}
    assert not (home / "data" / FILE).exists()
    assert invoke(["topic", "create", "new"]) == 0, "the directory itself is used after the end of the node"


def test_settings_before_the_command_have_no_effect_on_a_node_and_a_warning(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(home):
        assert invoke(["-X", "file.delete.delay.ms=1s", "topic", "create", "new"]) == 0
    assert "-X has no effect: file.delete.delay.ms" in capfd.readouterr().err


def test_a_socket_without_a_listener_is_ignored_and_replaced(home: Path) -> None:
    path = home / "data" / FILE
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    assert invoke(["topic", "create", "first"]) == 0
    with running(home):
        assert path.stat().st_mode & 0o777 == 0o600
        assert invoke(["topic", "create", "second"]) == 0
    assert not path.exists()


def test_another_command_that_holds_the_directory_is_a_conflict(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_node, "GRACE_S", 0.0)
    with LogManager.open(Session(directory=str(home)).config(), now_ms=now_ms()):
        assert invoke(["topic", "create", "new"]) == 5
    assert "another manager has the log directory open" in capfd.readouterr().err


def test_a_command_waits_for_a_node_that_starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is there from the load of the logs on; requests wait until the node serves them."""
    monkeypatch.setattr(command_node, "NOTE_AFTER_S", 0.01)
    config, waits, codes = Session(directory=str(home)).config(), threading.Event(), []

    def say(session: Session, text: str) -> None:
        if "starts or ends" in text:
            waits.set()

    monkeypatch.setattr(Session, "say", say)
    with closing(NodeSocket(config.data_dirs)) as own:
        manager = LogManager.open(config, now_ms=now_ms(), progress=lambda loaded: own.publish())
        command = threading.Thread(target=lambda: codes.append(invoke(["topic", "create", "new"])))
        command.start()
        try:
            assert waits.wait(60)
            assert not codes
            with manager, serving_node(manager, None, 0, own=own, now_ms=now_ms):
                command.join(60)
                assert codes == [0]
        finally:
            command.join(60)


def test_a_command_beside_a_node_that_ends_opens_the_directory_afterwards(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_node, "NOTE_AFTER_S", 0.01)
    config, waits, codes = Session(directory=str(home)).config(), threading.Event(), []

    def say(session: Session, text: str) -> None:
        if "starts or ends" in text:
            waits.set()

    monkeypatch.setattr(Session, "say", say)
    own = NodeSocket(config.data_dirs)
    manager = LogManager.open(config, now_ms=now_ms())
    with serving_node(manager, None, 0, own=own, now_ms=now_ms):
        pass
    command = threading.Thread(target=lambda: codes.append(invoke(["topic", "create", "new"])))
    command.start()
    try:
        assert waits.wait(60)
        assert not codes
    finally:
        manager.close()
        own.close()
        command.join(60)
    assert codes == [0]


def test_a_node_that_dies_in_the_middle_of_a_command_leaves_its_outcome_unknown(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The connection ends while the operation is at work, as if the process had been killed."""
    begun, may_end = threading.Event(), threading.Event()

    def hang(manager: LogManager, name: str, parameters: bytes, work: object) -> bytes:
        begun.set()
        assert may_end.wait(60)
        return b"null"

    monkeypatch.setattr("tiered.serve.node.endpoint.run_operation", hang)
    monkeypatch.setattr("tiered.serve.node.endpoint.JOBS_END_S", 0.0)
    codes: list[int] = []
    with running(home):
        command = threading.Thread(target=lambda: codes.append(invoke(["topic", "create", "new"])))
        command.start()
        assert begun.wait(60)
    may_end.set()
    command.join(60)
    assert codes == [6]
    said = capfd.readouterr().err
    assert "it is unknown whether the change was made" in said
    assert "created" not in said


class Reports:
    """The `Work` of a test."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_cancelled = False
        self.advanced = 0

    def expect(self, count: int, unit: str = "bytes") -> None: ...

    def advance(self, count: int = 1) -> None:
        self.advanced += count

    def say(self, text: str) -> None:
        self.said.append(text)

    def should_stop(self) -> bool:
        return self.is_cancelled

    def pause(self, seconds: float) -> None: ...

    def now_ms(self) -> int:
        return now_ms()


def until_told(manager: LogManager, work: Work, *, topic: str, roll: bool) -> CompactedTopic:
    """As `compact`, until the end that `work` asks for."""
    work.advance(5)
    work.say("it works")
    while not work.should_stop():
        threading.Event().wait(0.01)
    return CompactedTopic(cleaned=[], problems=[])


until_told.__name__ = "compact"


def test_an_operation_that_the_end_of_the_node_cuts_short_is_no_success(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "OPERATIONS", {**operations.OPERATIONS, "compact": until_told})
    begun, outcomes = threading.Event(), list[LogError]()
    work = Reports()
    work.say = lambda text: begun.set()  # type: ignore[method-assign]

    def command(node: RunningNode) -> None:
        try:
            node.run(until_told, topic="keyed", roll=False)
        except LogError as error:
            outcomes.append(error)

    with running(home):
        client = find_node([str(home / "data")], print)
        assert client is not None
        thread = threading.Thread(target=command, args=(RunningNode(client, work),))
        thread.start()
        assert begun.wait(60)
    thread.join(60)
    client.close()
    (outcome,) = outcomes
    assert isinstance(outcome, Unavailable)
    assert "stopped the operation before its end, the node ends" in str(outcome)


def test_a_command_that_is_interrupted_gets_what_its_operation_did(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "OPERATIONS", {**operations.OPERATIONS, "compact": until_told})
    work = Reports()
    work.is_cancelled = True
    with running(home):
        client = find_node([str(home / "data")], print)
        assert client is not None
        with client:
            assert RunningNode(client, work).run(until_told, topic="keyed", roll=False).cleaned == []
    assert (work.advanced, work.said) == (5, ["it works"])


def test_two_commands_at_once_are_both_carried_out_by_the_node(home: Path) -> None:
    codes: list[int] = []
    with running(home) as manager:
        commands = [
            threading.Thread(target=lambda at=at: codes.append(invoke(["-C", str(home), "topic", "create", f"t{at}"])))
            for at in range(4)
        ]
        for each in commands:
            each.start()
        for each in commands:
            each.join(60)
        assert {f"t{at}" for at in range(4)} <= {each.name for each in manager.topics.all()}
    assert codes == [0] * 4


def test_a_node_refuses_other_users(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(home):
        monkeypatch.setattr("tiered.serve.server.peer_user", lambda connection: os.geteuid() + 1)
        monkeypatch.setattr(command_node, "START_WAIT_S", 0.2)
        with pytest.raises(Unavailable, match="does not answer"):
            find_node([str(home / "data")], lambda text: None)


def test_a_command_refuses_a_socket_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(home):
        with monkeypatch.context() as patch:
            patch.setattr(unix_socket, "peer_user", lambda connection: os.geteuid() + 1)
            with pytest.raises(AccessDenied, match="another user"):
                connect(str(home / "data"), 1.0)
        assert invoke(["topic", "create", "new"]) == 0


def test_a_directory_with_a_long_path_has_a_socket_too(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = made(prepared, tmp_path / ("d" * 120), monkeypatch)
    with running(home) as manager:
        assert invoke(["topic", "create", "new"]) == 0
        assert manager.topics.get("new").partition_count == 1


def test_a_node_whose_socket_was_replaced_leaves_the_new_one(tmp_path: Path) -> None:
    first, second = NodeSocket([str(tmp_path)]), NodeSocket([str(tmp_path)])
    first.publish()
    second.publish()
    first.close()
    assert (tmp_path / FILE).is_socket()
    second.close()
    assert not (tmp_path / FILE).exists()


def test_a_directory_that_cannot_hold_a_socket_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(NodeSocket([str(tmp_path / "none"), str(tmp_path)])) as own:
        own.publish()
        assert (tmp_path / FILE).is_socket()
    with closing(NodeSocket([str(tmp_path / "none")])) as own:
        own.publish()
        assert own.listener is None
    assert "commands cannot use this node" in caplog.text


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("is_beside", [True, False])
def test_consume_follows_new_records_with_and_without_a_running_node(
    is_beside: bool,
    isolation: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(following, "PAUSE_S", 0.01)
    capfd.readouterr()
    codes: list[int] = []
    words = ["-C", str(home), "consume", "other", "--follow", "-n", "120", "-f", "%p %o\\n", "--isolation", isolation]
    with running(home) if is_beside else nullcontext():
        reader = threading.Thread(target=lambda: codes.append(invoke(words)))
        reader.start()
        for _ in range(2):
            assert invoke(["-q", "append", "other", "lines", "-K", ":", "-o", "csv"]) == 0
        reader.join(60)
    assert codes == [0]
    lines = [line for line in capfd.readouterr().out.splitlines() if re.fullmatch(r"\d+ \d+", line)]
    assert len(set(lines)) == len(lines) == 120


def test_a_follower_is_woken_by_the_append_and_survives_the_end_of_the_node(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its long poll lasts half a minute: without the wake-up the test would take that long."""
    pauses: list[float] = []
    name = TopicPartition("plain", 0)
    roots = [str(home / "data"), str(home / "more")]
    topic_id = Session(directory=str(home)).topics().get("plain").topic_id
    with Following(roots, lambda: topic_id, Isolation.READ_UNCOMMITTED, pauses.append) as follower:

        def read() -> list[int]:
            with Session(directory=str(home)).manager(read_only=True) as manager:
                parts = follower.columns(manager.reader(), [name], lambda name: 50)
                return [offset for _, part in parts for offset in part.offsets.tolist()]

        assert read() == list(range(50, 60))
        with running(home):
            waiter = threading.Thread(target=follower.wait)
            waiter.start()
            assert invoke(["-q", "append", "plain", "lines"]) == 0
            waiter.join(20)
            assert not waiter.is_alive()
            assert (read(), pauses) == (list(range(60, 120)), [])
        follower.wait()  # the connection has ended: a reason to look
        assert read() == []
        follower.wait()
        assert pauses, "the node ended: the reader pauses, and reads again"
        assert read() == []


def test_following_a_view_is_refused(home: Path) -> None:
    assert invoke(["consume", "plain", "--follow", "--read-compacted"]) == 2


def test_a_reset_group_is_listed_and_described_with_its_lag(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke(["group", "reset-offsets", "readers", "plain", "--to", "earliest", "--yes"]) == 0
    for is_beside in (True, False):
        with running(home) if is_beside else nullcontext():
            capfd.readouterr()
            assert invoke(["group", "list", "-o", "csv"]) == 0
            assert "readers,Empty" in capfd.readouterr().out
            assert invoke(["group", "describe", "readers", "-o", "json"]) == 0
            described = json.loads(capfd.readouterr().out)
            assert (described["state"], described["members"]) == ("Empty", 0)
            (offset,) = described["offsets"]
            assert (offset["topic"], offset["committed"], offset["end"], offset["lag"]) == ("plain", 0, 60, 60)
