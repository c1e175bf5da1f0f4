"""External buckets on the command line: ``remote ls``, ``consume --layout``, ``import``, exit codes."""

from __future__ import annotations

import json

import pytest
from bucket_truth import assert_sound
from external_samples import NAME, Sample, new_key, put_aiven, put_log, write_log

from local.errors import InvalidRequest
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.cli.options import LAYOUTS, Layout


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    return write_log(tmp_path_factory.mktemp("log") / NAME.directory)


@pytest.fixture
def logs(sample, tmp_path) -> str:
    (tmp_path / "theirs").mkdir()
    url = (tmp_path / "theirs").as_uri()
    store = open_store(url)
    for files in sample.segments:
        put_log(store, files)
    store.close()
    return url


@pytest.fixture
def ours(tmp_path) -> str:
    (tmp_path / "ours").mkdir()
    return (tmp_path / "ours").as_uri()


def _json(capfd, *words: str) -> dict:
    assert invoke([*words, "-o", "json"]) == 0
    return json.loads(capfd.readouterr().out)


def _read(capfd, url: str, *words: str) -> list[str]:
    target = f"{NAME.topic}/{NAME.partition}"
    assert invoke(["consume", target, "--remote", url, "-f", "%o %t %k %v\\n", *words]) == 0
    return capfd.readouterr().out.splitlines()


def test_external_bucket_is_listed_and_read(sample, logs, capfd) -> None:
    (row,) = _json(capfd, "remote", "ls", logs)["partitions"]
    size = sum(len(files.log) for files in sample.segments)
    expected = {"topic": NAME.topic, "partition": NAME.partition, "topic_id": None, "log_start_offset": 0}
    expected |= {"next_offset": sample.end, "segments": len(sample.segments), "size_bytes": size, "missing_offsets": 0}
    expected |= {"error": None}
    assert row == expected
    assert len(_read(capfd, logs, "--layout", "auto")) == len(sample.records)
    committed = _read(capfd, logs, "--layout", "logs", "--isolation", "read_committed")
    assert len(committed) == len([each for each in sample.committed if each.offset < sample.stable])


def test_dump_of_an_external_bucket_shows_its_batches(sample, logs, ours, tmp_path, capfd) -> None:
    """The batches are those of the segment files, from any offset. A native bucket gives the same."""
    target = f"{NAME.topic}/{NAME.partition}"
    whole = _json(capfd, "dump", target, "--remote", logs, "--layout", "auto")["batches"]
    files = []
    for number, segment in enumerate(sample.segments):
        path = tmp_path / f"{number:020d}.log"
        path.write_bytes(segment.log)
        files += _json(capfd, "dump", str(path))["batches"]
    facts = ("baseOffset", "lastOffset", "count", "producerId", "isTransactional", "isControl", "crc", "size")
    assert [[row[name] for name in facts] for row in whole] == [[row[name] for name in facts] for row in files]
    at = whole[len(whole) // 2]["baseOffset"]
    rest = _json(capfd, "dump", f"{target}@{at}", "--remote", logs, "--layout", "logs")["batches"]
    assert [row["baseOffset"] for row in rest] == [row["baseOffset"] for row in whole if row["baseOffset"] >= at]
    assert invoke(["import", logs, NAME.topic, "--remote", ours, "--yes"]) == 0
    capfd.readouterr()
    imported = _json(capfd, "dump", target, "--remote", ours)["batches"]
    assert [row["crc"] for row in imported] == [row["crc"] for row in whole]
    assert invoke(["dump", target, "--layout", "logs"]) == 2
    assert "--remote" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["remote", "ls", "EMPTY"],
        ["remote", "ls", "EMPTY", "t"],
        ["consume", "t", "--remote", "EMPTY", "--layout", "auto"],
        ["dump", "t/0", "--remote", "EMPTY", "--layout", "auto"],
        ["import", "EMPTY", "--remote", "THEIRS", "--dry-run"],
    ],
    ids=" ".join,
)
def test_layout_of_an_empty_bucket_is_not_found(ours, logs, capfd, words) -> None:
    urls = {"EMPTY": ours, "THEIRS": logs}
    assert invoke([urls.get(word, word) for word in words]) == 1
    told = capfd.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert "check the url" in line
    assert f"store={ours}" in line


def test_remote_ls_reports_missing_offsets_on_stderr(sample, tmp_path, capfd) -> None:
    store = open_store(tmp_path.as_uri())
    for files in (sample.segments[0], sample.segments[2]):
        put_log(store, files)
    assert invoke(["remote", "ls", tmp_path.as_uri()]) == 0
    lost = sample.segments[1]
    assert f"no segment covers the offsets {lost.base} to {lost.next - 1}" in capfd.readouterr().err


def test_import_shows_a_dry_run_then_imports_and_does_nothing_when_repeated(
    sample, logs, ours, capfd, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the directory for the report of the scrub
    words = ("import", logs, NAME.topic, "--remote", ours)
    planned = _json(capfd, *words, "--dry-run")
    assert planned["dry_run"] is True
    assert planned["partitions"][0]["segments"] == len(sample.segments)
    assert list(open_store(ours).list("")) == []
    assert invoke([*words]) == 2
    assert "add --yes" in capfd.readouterr().err
    (done,) = _json(capfd, *words, "--yes", "--codec", "zstd")["partitions"]
    assert (done["records"], done["next_offset"], done["is_complete"]) == (len(sample.records), sample.end, True)
    assert _read(capfd, ours) == _read(capfd, logs, "--layout", "auto")
    assert_sound(open_store(ours))
    capfd.readouterr()
    # the source has no partitions below this one
    assert invoke(["scrub", "--deep", "--remote", ours, "-o", "json"]) == 3
    findings = json.loads(capfd.readouterr().out)["findings"]
    found = {(each["severity"], each["partition"]) for each in findings}
    assert found == {("warning", number) for number in range(NAME.partition)}
    assert _json(capfd, *words, "--yes")["partitions"] == []
    (row,) = _json(capfd, "remote", "ls", ours)["partitions"]
    assert (row["topic_id"], row["next_offset"]) == (done["topic_id"], sample.end)


def test_import_that_is_not_possible_is_refused_with_the_next_step(sample, logs, ours, capfd) -> None:
    assert invoke(["import", logs, "nothing-like-it", "--remote", ours, "--dry-run"]) == 1
    assert "not in the bucket" in capfd.readouterr().err
    assert invoke(["import", logs, "--remote", ours, "--yes"]) == 0
    assert invoke(["import", ours, "--remote", logs, "--dry-run"]) == 2
    assert "tiered rewrite copy" in capfd.readouterr().err
    assert invoke(["consume", "t", "--layout", "logs"]) == 2
    assert "--remote" in capfd.readouterr().err


def test_import_refuses_a_topic_name_of_another_topic_id(sample, logs, ours, tmp_path, capfd) -> None:
    (tmp_path / "others").mkdir()
    other = (tmp_path / "others").as_uri()
    put_log(open_store(other), sample.segments[0])
    assert invoke(["import", other, "--remote", ours, "--yes"]) == 0
    capfd.readouterr()
    assert invoke(["import", logs, "--remote", ours, "--yes"]) == 5
    assert "the target has a topic of this name" in capfd.readouterr().err
    assert invoke(["import", logs, "--remote", ours, "--yes", "--topic-id", "B" * 22]) == 0


def test_aiven_prefix_and_keys_are_options(sample, ours, tmp_path, capfd) -> None:
    key = new_key(tmp_path / "key1.pem")
    (tmp_path / "theirs").mkdir()
    url = (tmp_path / "theirs").as_uri()
    store = open_store(url)
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number, prefix="tier-", compressed=True, key=key)
    words = ["--layout", "aiven", "--layout-prefix", "tier-", "--layout-key", f"key1={key.path}"]
    assert len(_read(capfd, url, *words)) == len(sample.records)
    assert invoke(["import", url, "--remote", ours, "--yes", *words]) == 0
    capfd.readouterr()
    assert len(_read(capfd, ours)) == len(sample.records)
    with pytest.raises(InvalidRequest, match="id=file"):
        Layout(layout="aiven", prefixes=(), private_keys=("key1",)).words()


def test_layout_options_of_the_cli_equal_those_of_the_library() -> None:
    from remote.external.external_layout import WORDS

    assert sorted(LAYOUTS) == sorted(WORDS)
