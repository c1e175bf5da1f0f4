"""Every command on a directory whose log diverged or whose bucket is lost.
Checks exit codes and messages. No command may change anything."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from tiered.cli.main import invoke

FILE = """
[local]
dir = "data"
[remote]
url = "file://HOME/bucket"
[defaults]
"remote.storage.enable" = true
"segment.bytes" = "2000"
"append.batch.bytes" = "300"
"retention.ms" = -1
"local.retention.ms" = KEPT
"file.delete.delay.ms" = 0
"cleanup.policy" = "POLICY"
"min.cleanable.dirty.ratio" = 0
"""


def _home(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def _node(home: Path, name: str, *, kept: str = "-1", policy: str = "delete") -> Path:
    node = home / name
    node.mkdir(exist_ok=True)
    (home / "bucket").mkdir(exist_ok=True)
    text = FILE.replace("HOME", str(home)).replace("KEPT", kept).replace("POLICY", policy)
    (node / "tiered.toml").write_text(text)
    return node


def _run(node: Path, line: str) -> int:
    return invoke(["-q", "-C", str(node), *shlex.split(line)])


def _lines(home: Path, start: int, end: int) -> Path:
    path = home / f"lines-{start}"
    path.write_text("".join(f"k{at % 7}:value {at}\n" for at in range(start, end)))
    return path


def _state(node: Path, bucket: Path) -> dict[str, str]:
    """Hashes of the local segments and of every manifest in the bucket."""
    files = [*node.glob("data/*/*.log"), *bucket.glob("*/*/meta/head/*")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(params=["delete", "compact"])
def diverged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only node `a` has the offsets [20, 100).
    Node `b` took over, and its log start offset is above the end of `a`."""
    _home(tmp_path, monkeypatch)
    a = _node(tmp_path, "a", policy=request.param)
    lines = _lines(tmp_path, 0, 20)
    rolled = ("topic alter t -X segment.ms=1", "run --once", "run --once", "topic alter t -X segment.ms=")
    for line in ("topic create t -p 1", f"append t/0 {lines} -K : --batch 10", *rolled):
        assert _run(a, line) == 0
    assert _run(a, f"append t/0 {_lines(tmp_path, 20, 100)} -K : --batch 10") == 0
    remote = f"file://{tmp_path}/bucket"
    assert _run(a, f"restore t --remote {remote} --to {tmp_path}/b/data --take-over --yes") == 0
    b = _node(tmp_path, "b", policy="delete")
    assert _run(b, "topic alter t -X cleanup.policy=delete") == 0
    assert _run(b, f"append t/0 {_lines(tmp_path, 5000, 5200)} -K : --batch 10") == 0
    for line in ("run --once", "delete-records t/0 --before 150 --yes", "run --once"):
        assert _run(b, line) == 0
    return tmp_path


REFUSED = (
    ("run --once", 5),
    ("append t/0 LINES -K :", 5),
    ("append t LINES -K : --acks remote", 5),
    ("delete-records t/0 --before 30 --yes", 5),
    ("delete-records t/0 --before -1 --yes", 5),
    ("topic alter t -X retention.ms=1s -X local.retention.ms=1s", None),
    ("topic alter t -X cleanup.policy=compact,delete", None),
    ("run --once", 5),
    ("run --once --take-over", 5),
    ("topic delete t --yes", 5),
    ("compact t", None),
    ("apply --auto --yes", None),
    ("view build t", None),
    ("log-dirs --help", 0),
    ("pause t", None),
    ("resume t", None),
    ("transactions list", None),
    ("verify", None),
    ("verify data/t-0 --fix-index", None),
    ("plan", 10),
    ("status", 10),
    ("status --check", 10),
    ("doctor", 10),
    ("consume t/0", 5),
    ("consume t/0 --local --from 20", 0),
)


def test_no_command_changes_a_diverged_log_or_makes_it_the_writer_again(diverged: Path, capfd) -> None:
    node, lines = diverged / "a", _lines(diverged, 9000, 9010)
    before = _state(node, diverged / "bucket")
    assert len(before) > 5
    for line, code in REFUSED:
        capfd.readouterr()
        found = _run(node, line.replace("LINES", str(lines)))
        told = capfd.readouterr()
        is_usage = found == 2 and (
            "compact" in told.err or "cleanup.policy" in told.err
        )  # these two apply only to compacted topics
        assert code is None or found == code or is_usage, (line, found, told.err)
        assert "Traceback" not in told.err, line
        after = _state(node, diverged / "bucket")
        assert after == before, line
        if code in (5, 10) and not is_usage:
            assert "all records of this disk are retained" in told.err + told.out, line
    assert _run(diverged / "b", f"append t/0 {lines} -K :") == 0, "the writer can still append"


def test_records_of_a_diverged_log_are_rescued_with_the_command_in_its_error(diverged: Path, capfd) -> None:
    a, b = diverged / "a", diverged / "b"
    capfd.readouterr()
    assert invoke(["-C", str(a), "run", "--once"]) == 5
    (told,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    for fact in ("local_next_offset=100", "remote_start_offset=150", "remote_next_offset=160", "halted.md"):
        assert fact in told, told
    command = told.partition("rescue=`")[2].partition("`")[0]
    assert command.startswith("tiered consume t/0 --local --from 20")
    assert _run(a, command.removeprefix("tiered ")) == 0
    (diverged / "rescued.jsonl").write_text(capfd.readouterr().out)
    assert _run(b, f"append t/0 --jsonl {diverged}/rescued.jsonl") == 0
    capfd.readouterr()
    assert _run(b, "consume t/0 --from -80 ") == 0
    assert capfd.readouterr().out.split("\n")[:-1] == [f"value {at}" for at in range(20, 100)]
    shutil.move(a / "data" / "t-0", diverged / "aside")
    assert _run(a, "run --once") == 0, "a directory without the partition starts at the next offset of the bucket"


def test_doctor_of_a_diverged_directory_reports_that_it_cannot_be_opened(diverged: Path, capfd) -> None:
    capfd.readouterr()
    assert _run(diverged / "a", "doctor -o json") == 10
    found = json.loads(capfd.readouterr().out)["findings"]
    told = [(each["state"], each["what"]) for each in found if each["check"] in ("partitions", "index")]
    assert ("skipped", "0 of 1 can be opened; the others are listed above") in told
    assert not any(
        "the next start continues at the end of the bucket" in f"{each['what']} {each['next']}" for each in found
    )
    assert any(state == "error" and "records at offsets that this disk holds" in what for state, what in told)


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """2,000 of 2,001 offsets were in a bucket. An empty directory has replaced the bucket."""
    _home(tmp_path, monkeypatch)
    node = _node(tmp_path, "a", kept="1")
    assert _run(node, "topic create t -p 1") == 0
    assert _run(node, f"append t/0 {_lines(tmp_path, 0, 2000)} -K :") == 0
    assert _run(node, "topic alter t -X segment.ms=1") == 0
    assert _run(node, "run --once") == 0
    assert _run(node, "run --once") == 0
    assert _run(node, "topic alter t -X segment.ms=") == 0
    assert _run(node, f"append t/0 {_lines(tmp_path, 2000, 2001)} -K :") == 0
    (tmp_path / "bucket").rename(tmp_path / "former")
    (tmp_path / "bucket").mkdir()
    return tmp_path


LOST = {
    "status": 10,
    "status --check": 10,
    "status --section sync": 10,
    "doctor": 10,
    "doctor --problems": 10,
    "scrub": 5,
    "verify --remote": 5,
    "plan": 10,
    "plan --summary": 10,
    "cost show": 10,
    "consume t/0": 5,
    "append t/0 LINES -K :": 5,
    "delete-records t/0 --before 10 --yes": 5,
    "run --once": 5,
}


def test_every_command_on_a_lost_bucket_reports_the_loss_and_fails(lost: Path, capfd) -> None:
    node, lines = lost / "a", _lines(lost, 9000, 9010)
    before = _state(node, lost / "bucket")
    for line, code in LOST.items():
        capfd.readouterr()
        found = _run(node, line.replace("LINES", str(lines)))
        told = capfd.readouterr()
        assert found == code, (line, found, told.err)
        assert "the bucket is lost or wrong" in told.err + told.out, line
        assert "two writers" not in told.err + told.out, line
        assert "another writer" not in told.err + told.out, line
        assert _state(node, lost / "bucket") == before, line
    capfd.readouterr()
    assert _run(node, "consume t/0 --local -o jsonl") == 0
    assert json.loads(capfd.readouterr().out)["offset"] == 2000
    (lost / "bucket").rename(lost / "empty")
    (lost / "former").rename(lost / "bucket")
    assert _run(node, "run --once") == 0, "maintenance succeeds with the former bucket"


def test_fenced_node_without_its_bucket_reads_its_disk_and_returns_by_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _home(tmp_path, monkeypatch)
    a, remote = _node(tmp_path, "a"), f"file://{tmp_path}/bucket"
    append = f"append t/0 {_lines(tmp_path, 20, 100)} -K : --batch 10"
    rolled = ("topic alter t -X segment.ms=1", "run --once", "run --once", "topic alter t -X segment.ms=")
    for line in ("topic create t -p 1", f"append t/0 {_lines(tmp_path, 0, 20)} -K : --batch 10", *rolled, append):
        assert _run(a, line) == 0, line
    assert _run(a, f"restore t --remote {remote} --to {tmp_path}/b/data --take-over --yes") == 0
    assert _run(a, "run --once") == 5
    assert (a / "data/t-0/fenced-by").exists()
    (tmp_path / "bucket").rename(tmp_path / "away")
    capfd.readouterr()
    assert _run(a, append) != 0
    assert _run(a, "consume t/0") == 5
    told = capfd.readouterr().err
    assert "consume t/0 --local" in told
    assert "tiered run --take-over" in told
    assert _run(a, "consume t/0 --local -o jsonl") == 0
    assert len(capfd.readouterr().out.splitlines()) == 100
    (tmp_path / "away").rename(tmp_path / "bucket")
    assert _run(a, "run --once --take-over") == 0
    assert not (a / "data/t-0/fenced-by").exists()
    for line in (append, "run --once", "consume t/0"):
        assert _run(a, line) == 0, line
