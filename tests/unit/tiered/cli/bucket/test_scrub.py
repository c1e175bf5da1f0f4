"""``tiered scrub``, from the command line to the exit code."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from local.storage import DiskStorage
from local.verify.findings import Finding, Severity
from remote.manifest.manifest import decode_manifest, encode_manifest
from remote.manifest.sealing import Sealer
from remote.segments.encryption import KeyRing
from tiered.cli.main import invoke
from tiered.health.scrub_report import ScrubState, SegmentResult


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n[defaults]\n"segment.bytes" = "4KiB"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512"]
    assert invoke([*words, "topic", "create", "t", *settings]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def _segments(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bucket").glob("t-*/0/data/*.log"))


def _flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[1000] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(body))


@pytest.mark.parametrize("more", [[], ["--deep"], ["--deep", "--rate", "100MB/s", "--threads", "2"]])
def test_scrub_of_a_sound_bucket_exits_0_and_writes_no_file(
    at: list[str], tmp_path: Path, capfd, more: list[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert invoke([*at, "scrub", *more]) == 0
    said = capfd.readouterr().err
    assert "corrupt=0 warning=0" in said
    assert ("every byte" in said) == ("--deep" in more)
    assert sorted(tmp_path.iterdir()) == before


def test_scrub_of_a_damaged_segment_exits_4_and_reports_the_good_copy(at: list[str], tmp_path: Path, capfd) -> None:
    wrong = _segments(tmp_path)[1]
    _flip(wrong)
    assert invoke([*at, "scrub", "t"]) == 0
    capfd.readouterr()
    assert invoke([*at, "scrub", "t/0", "--deep", "--report", "found.json", "-o", "json"]) == 4
    out, said = capfd.readouterr()
    told = json.loads(out)
    report = json.loads((tmp_path / "found.json").read_text())
    assert report["schema_version"] == told["schema_version"] == 1
    assert told["report"] == "found.json"
    assert {each["object"] for each in told["findings"]} == {f"data/{wrong.name}"}
    assert {each["good_copy"] for each in report["findings"]} == {"local"}
    assert "next: tiered repair found.json --dry-run" in said


def test_scrub_of_an_unknown_object_exits_3(at: list[str], tmp_path: Path, capfd) -> None:
    (_segments(tmp_path)[0].parent / "notes.txt").write_text("mine")
    assert invoke([*at, "scrub", "--report", "r.json"]) == 3
    assert "notes.txt" in capfd.readouterr().out


def test_scrub_of_a_bucket_by_url_finds_damage_without_a_local_copy(at: list[str], tmp_path: Path, capfd) -> None:
    _flip(_segments(tmp_path)[0])
    (tmp_path / "elsewhere").mkdir()
    words = ["-C", str(tmp_path / "elsewhere"), "scrub", "--deep", "--remote", f"file://{tmp_path}/bucket"]
    assert invoke([*words, "-o", "json"]) == 4
    told = json.loads(capfd.readouterr().out)
    assert {each["good_copy"] for each in told["findings"]} == {None}
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [Path(told["report"]).name]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["no-such-topic"], 1, "not in the bucket: name=no-such-topic"),
        (["--resume"], 2, "a scrub of metadata always starts from the beginning"),
        (["--deep", "--rate", "fast"], 2, "invalid rate"),
        (["t", "--topic-id", "A" * 22], 1, "not in the bucket"),
    ],
)
def test_scrub_refuses_invalid_arguments(at: list[str], capfd, more: list[str], code: int, said: str) -> None:
    assert invoke([*at, "scrub", *more]) == code
    assert said in capfd.readouterr().err


@pytest.fixture
def sealed(at: list[str], tmp_path: Path, capfd) -> list[str]:
    """A bucket with a plain and an encrypted topic, and a directory without a key ring."""
    config = tmp_path / "tiered.toml"
    plain = config.read_text()
    (tmp_path / "ring").write_text("k1 " + base64.b64encode(bytes(range(32))).decode())
    (tmp_path / "ring").chmod(0o600)
    config.write_text(plain.replace("[remote]\n", '[remote]\nkey_ring = "ring"\n'))
    settings = ["-X", "remote.storage.enable=true", "-X", "remote.encryption.key.id=k1"]
    assert invoke([*at, "topic", "create", "secret", *settings]) == 0
    assert invoke([*at, "append", "secret", "lines", "-K", ":"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tiered.toml").write_text(plain)
    (tmp_path / "elsewhere" / "data").mkdir()
    capfd.readouterr()
    return ["-C", str(tmp_path / "elsewhere")]


@pytest.fixture
def encrypted(sealed: list[str], tmp_path: Path) -> list[str]:
    """The same bucket as older versions wrote it: the segments are encrypted, the manifests are not."""
    ring = KeyRing({"k1": bytes(range(32))})
    for path in (tmp_path / "bucket").glob("secret-*/*/meta/head/*"):
        manifest = decode_manifest(
            path.read_bytes(), sealer=Sealer(f"{path.parents[3].name}/{path.parents[2].name}/", ring)
        )
        path.write_bytes(encode_manifest(replace(manifest, seal_key_id=None)))
    return sealed


def test_scrub_and_verify_of_a_sealed_topic_without_a_key_report_it_as_unread(sealed, tmp_path: Path, capfd) -> None:
    for words in (["scrub"], ["verify", "secret", "t"]):
        assert invoke([*sealed, *words, "--deep", "--remote", *_bucket_of(words, tmp_path), "-o", "json"]) == 3
        out, said = capfd.readouterr()
        told = json.loads(out)
        assert told["unread_partitions"] == 1
        assert [each["severity"] for each in told["findings"] if "key_id=k1" in each["what"]] == ["warning"]
        assert "1 partition" in said
        assert "every byte" not in said


def _bucket_of(words: list[str], tmp_path: Path) -> list[str]:
    return [f"file://{tmp_path}/bucket"] if words == ["scrub"] else []


def test_scrub_of_encrypted_segments_without_a_key_reports_them_as_unread(encrypted, tmp_path: Path, capfd) -> None:
    bucket = ["--remote", f"file://{tmp_path}/bucket"]
    assert invoke([*encrypted, "scrub", "--deep", *bucket, "-o", "json", "--report", "r.json"]) == 3
    out, said = capfd.readouterr()
    told = json.loads(out)
    unread = [each for each in told["findings"] if each["topic"] == "secret" and "key_id=k1" in each["what"]]
    assert told["unread_segments"] == len(unread) > 0
    assert told["unread_bytes"] > 0
    assert "every byte" not in said
    assert f"{len(unread)} segment" in said
    assert invoke([*encrypted, "scrub", "t", "--deep", *bucket]) == 0
    assert "every byte" in capfd.readouterr().err


def test_verify_of_encrypted_segments_without_a_key_does_not_count_them(encrypted, capfd) -> None:
    assert invoke([*encrypted, "verify", "secret", "--deep", "--remote", "-o", "json"]) == 3
    out, said = capfd.readouterr()
    told = json.loads(out)
    assert (told["read_segments"], told["read_bytes"]) == (0, 0)
    assert told["unread_segments"] == told["segments"] > 0
    assert "could not be read" in said


def test_resumed_scrub_keeps_the_findings_about_unread_segments(encrypted, tmp_path: Path) -> None:
    finding = Finding(code="object.no-key", severity=Severity.WARNING, where="p", what="no key", is_unread=True)
    path = str(tmp_path / "state.jsonl")
    with ScrubState(DiskStorage(), path, "s", now_ms=1, resume=False) as state:
        state.append(SegmentResult(name="n", read_bytes=7, findings=(finding,)))
    with ScrubState(DiskStorage(), path, "s", now_ms=2, resume=True) as state:
        assert state.results(["n"])["n"].is_unread


def _without_a_middle_partition(at: list[str], tmp_path: Path, capfd) -> str:
    """The url of a bucket with a topic of three partitions, of which partition 1 has no objects."""
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512"]
    assert invoke([*at, "topic", "create", "three", "-p", "3", *settings]) == 0
    assert invoke([*at, "append", "three", "lines", "-K", ":"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    (lost,) = (tmp_path / "bucket").glob("three-*/1")
    shutil.rmtree(lost)
    capfd.readouterr()
    return f"file://{tmp_path}/bucket"


@pytest.mark.parametrize("command", ["scrub three", "scrub --deep", "scrub three/0 three"])
def test_scrub_reports_a_partition_missing_between_others(at: list[str], tmp_path: Path, capfd, command: str) -> None:
    url = _without_a_middle_partition(at, tmp_path, capfd)
    assert invoke([*command.split(), "--remote", url, "-o", "json"]) == 3
    found = json.loads(capfd.readouterr().out)
    (told,) = (each for each in found["findings"] if each["severity"] == "warning")
    assert (told["topic"], told["partition"]) == ("three", 1)
    assert "has no manifest" in told["what"]
    assert found["unread_partitions"] == 1


def test_scrub_ignores_a_missing_partition_outside_its_arguments(at: list[str], tmp_path: Path, capfd) -> None:
    url = _without_a_middle_partition(at, tmp_path, capfd)
    assert invoke(["scrub", "three/0", "three/2", "--remote", url]) == 0
    assert invoke(["scrub", "t", "--remote", url]) == 0


def test_verify_remote_names_a_partition_missing_between_others(at: list[str], tmp_path: Path, capfd) -> None:
    _without_a_middle_partition(at, tmp_path, capfd)
    assert invoke([*at, "verify", "--remote", "three"]) == 3
    assert "has no manifest" in capfd.readouterr().out


def test_restore_refuses_a_topic_with_a_missing_partition_unless_others_are_named(
    at: list[str], tmp_path: Path, capfd
) -> None:
    url = _without_a_middle_partition(at, tmp_path, capfd)
    words = ["--remote", url, "--yes"]
    assert invoke(["restore", "three", "--to", "alone", *words]) == 1
    assert "no manifest of this partition" in capfd.readouterr().err
    assert not (tmp_path / "alone").exists()
    assert invoke(["restore", "t", "three", "--to", "both", *words]) == 1
    assert "! three/1: " in capfd.readouterr().err
    assert {path.name for path in (tmp_path / "both").glob("*-*")} >= {"t-0"}
    assert not list((tmp_path / "both").glob("three-*"))
    assert invoke(["restore", "three/0", "three/2", "--to", "parts", *words]) == 0
    assert {path.name for path in (tmp_path / "parts").glob("three-*")} == {"three-0", "three-2"}


def test_fork_names_a_partition_that_its_source_lacks(at: list[str], tmp_path: Path, capfd) -> None:
    url = _without_a_middle_partition(at, tmp_path, capfd)
    assert invoke(["fork", "three", "copy", "--remote", url, "--yes"]) == 1
    assert "! three/1: the bucket has no manifest" in capfd.readouterr().err
    assert invoke(["fork", "t", "again", "--remote", url, "--yes"]) == 0
