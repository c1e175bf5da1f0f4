"""``tiered rewrite``, from the command line to the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from local.errors import InvalidRequest
from remote.store import open_store as fsspec_store
from remote.store.s3_options import ObjectSettings
from tiered.cli.job_command import open_target
from tiered.cli.main import invoke
from tiered.config.properties import DEFAULTS

KEY = "2026-a " + "A" * 43 + "=\n"


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring").write_text(KEY)
    (tmp_path / "ring").chmod(0o600)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\nkey_ring = "{tmp_path}/ring"\n'
        '[defaults]\n"segment.bytes" = "4KiB"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512", "-X", "local.retention.ms=1"]
    assert invoke([*words, "topic", "create", "t", *settings]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def _read(at: list[str], tmp_path: Path, capfd) -> str:
    assert invoke([*at, "consume", "t", "--remote", f"file://{tmp_path}/bucket", "-f", "%o %k %v\\n"]) == 0
    return str(capfd.readouterr().out)


def _run(at: list[str], capfd, *words: str) -> dict[str, object]:
    assert invoke([*at, "rewrite", *words, "-o", "json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["partitions"]
    return row


def test_rewrite_merge_does_what_its_dry_run_shows(at: list[str], tmp_path: Path, capfd) -> None:
    before = _read(at, tmp_path, capfd)
    planned = _run(at, capfd, "merge", "t", "--target", "20KiB", "--dry-run")
    assert invoke([*at, "rewrite", "merge", "t", "--target", "20KiB"]) == 2
    assert "add --yes" in capfd.readouterr().err
    done = _run(at, capfd, "merge", "t", "--target", "20KiB", "--yes", "--rate", "100MB/s")
    assert (done["rows_before"], done["rows_after"]) == (planned["segments"], planned["groups"])
    assert float(str(planned["dollars"])) > 0
    assert _read(at, tmp_path, capfd) == before
    assert invoke([*at, "rewrite", "merge", "t", "--target", "20KiB", "--yes"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    assert invoke([*at, "scrub", "--deep"]) == 0
    assert _read(at, tmp_path, capfd).endswith(before)


def test_rewrite_recode_changes_codec_and_key(at: list[str], tmp_path: Path, capfd) -> None:
    done = _run(at, capfd, "recode", "t", "--codec", "zstd", "--key-id", "2026-a", "--yes")
    assert done["rows_before"] == done["rows_after"]
    assert int(str(done["stored_after"])) < int(str(done["stored_before"]))
    assert invoke([*at, "scrub", "--deep"]) == 3
    told = capfd.readouterr()
    assert told.out.count("warning") == 1 == told.out.count("are not sealed"), "only rotate-keys seals the manifests"
    assert "corrupt=0 warning=1" in told.err
    assert invoke([*at, "rewrite", "recode", "t", "--codec", "zstd", "--key-id", "2026-a", "--yes"]) == 0
    assert "nothing to rewrite" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recode", "t", "--yes"], "nothing to change"),
        (["recode", "t", "--key-id", "unreferenced_objects", "--yes"], "not in the key ring"),
        (["merge", "t", "--target", "much"], "invalid --target"),
        (["recode", "t", "--storage-class", "GLACIER_IR", "--yes"], "storage class and encryption are settings of S3"),
    ],
)
def test_rewrite_refuses_invalid_options(at: list[str], capfd, words: list[str], said: str) -> None:
    assert invoke([*at, "rewrite", *words]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("key_id", ["", "other"])
@pytest.mark.parametrize("ending", ["--yes", "--dry-run"])
def test_rewrite_copy_refuses_a_key_that_is_not_in_the_key_ring(
    at: list[str], tmp_path: Path, capfd, key_id: str, ending: str
) -> None:
    (tmp_path / "other").mkdir()
    words = ["copy", "t", "--to", f"file://{tmp_path}/other", ending, "--key-id", key_id]
    assert invoke([*at, "rewrite", *words]) == 2
    assert f"the key is not in the key ring: key_id={key_id}" in capfd.readouterr().err
    assert not any((tmp_path / "other").iterdir())


def test_rewrite_copy_copies_a_topic_to_another_bucket_and_later_catches_up(
    at: list[str], tmp_path: Path, capfd
) -> None:
    (tmp_path / "other").mkdir()
    to = ["copy", "t", "--to", f"file://{tmp_path}/other"]
    planned = _run(at, capfd, *to, "--dry-run")
    assert not any((tmp_path / "other").iterdir())
    assert invoke([*at, "rewrite", *to]) == 2
    assert "add --yes" in capfd.readouterr().err
    done = _run(at, capfd, *to, "--yes", "--codec", "zstd")
    assert (done["segments"], done["differences"], done["behind"]) == (planned["segments"], 0, 0)
    wanted = _read(at, tmp_path, capfd)
    assert invoke([*at, "consume", "t", "--remote", f"file://{tmp_path}/other", "-f", "%o %k %v\\n"]) == 0
    assert capfd.readouterr().out == wanted
    assert invoke([*at, "scrub", "--deep", "--remote", f"file://{tmp_path}/other"]) == 0
    assert invoke([*at, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    capfd.readouterr()
    assert int(str(_run(at, capfd, *to, "--yes")["segments"])) > 0
    assert invoke([*at, "rewrite", "copy", "t", "--yes", "--to", f"file://{tmp_path}/bucket"]) == 2
    assert "source and target are the same" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "encryption", "kms_key_id"),
    [
        ([], None, None),
        (["-X", "remote.sse=aws:kms", "-X", "remote.sse.kms.key.id=key-1"], "aws:kms", "key-1"),
    ],
)
def test_rewrite_writes_objects_with_the_configured_server_side_encryption(
    at: list[str], tmp_path: Path, monkeypatch, capfd, settings, encryption, kms_key_id
) -> None:
    """A regression: a target opened with only a storage class wrote segments without their KMS key."""
    opened, real = [], fsspec_store.open_store

    def open_store(url, *given, **named):
        if not url.startswith("s3:"):
            return real(url, *given, **named)
        opened.append((url, named["objects"]))
        raise InvalidRequest("opened")

    monkeypatch.setattr(fsspec_store, "open_store", open_store)
    words = ["rewrite", "copy", "t", "--to", "s3://there/logs", "--storage-class", "GLACIER_IR", "--yes"]
    assert invoke([*settings, *words, "--remote", f"file://{tmp_path}/bucket"]) == 2
    assert "opened" in capfd.readouterr().err
    # The configured bucket, which is S3 with such settings.
    values = {**DEFAULTS, **dict(text.split("=", 1) for text in settings[1::2])}
    session = SimpleNamespace(
        config=lambda: SimpleNamespace(topic_properties=lambda topic: values, key_ring=None), overrides={}
    )
    with pytest.raises(InvalidRequest, match="opened"):
        open_target(session, "s3://here/logs", {}, storage_class="GLACIER_IR", rate=None, is_configured=True)
    wanted = ObjectSettings(storage_class="GLACIER_IR", encryption=encryption, kms_key_id=kms_key_id)
    assert opened == [("s3://there/logs", wanted), ("s3://here/logs", wanted)]


def test_rewrite_costs_use_the_configured_prices_or_the_built_in_ones(at: list[str], tmp_path: Path, capfd) -> None:
    classes = {"STANDARD": {"put_per_1000": 7000.0, "get_per_1000": 1000.0, "list_per_1000": 0.0}}
    (tmp_path / "mine.json").write_text(json.dumps({"classes": classes}))
    (tmp_path / "other").mkdir()
    to = f"file://{tmp_path}/other"
    jobs = (
        ["rewrite", "merge", "t", "--target", "20KiB", "--dry-run"],
        ["rewrite", "recode", "t", "--codec", "zstd", "--dry-run"],
        ["rewrite", "copy", "t", "--to", to, "--dry-run"],
        ["restore", "t", "--to", f"{tmp_path}/back", "--dry-run"],
        ["fork", "t", "u", "--dry-run"],
    )
    for words in jobs:
        told = []
        for path in ("", "mine.json", "gone.json"):
            assert invoke([*at, "-X", f"cost.prices={path}", *words, "-o", "json"]) == 0, words
            out, err = capfd.readouterr()
            told.append((json.loads(out)["dollars"], "! dollars use the built-in prices" in err))
        assert told[1][0] >= 1000 * told[0][0] > 0, words
        assert told[2] == (told[0][0], True), words
        assert not told[0][1]
        assert not told[1][1]
