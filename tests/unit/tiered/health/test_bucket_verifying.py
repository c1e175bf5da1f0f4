"""Verification of a bucket, as a whole or by a sample: the library and ``tiered verify --remote``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from local.errors import InvalidRequest
from remote.manifest.catalog import list_partitions
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.health.bucket_verifying import Sample, verify_bucket
from tiered.health.scrub import SegmentJob, plan_scrub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("".join(f"k{at}:value {at} of many\n" for at in range(400)))
    settings = ["-X", "segment.bytes=1KiB", "-X", "local.retention.ms=1ms"]
    for words in (
        ["init"],
        ["topic", "create", "orders", "-p", "2", *settings],
        ["topic", "create", "others", *settings],
        ["append", "orders", "lines", "-K", ":", "--batch", "9"],
        ["append", "others", "lines", "--batch", "50"],
        ["run", "--once"],
    ):
        assert invoke(["-q", *words]) == 0
    capfd.readouterr()
    return tmp_path


def jobs_of(home: Path) -> tuple[SegmentJob, ...]:
    store = open_store((home / "bucket").as_uri(), {})
    return plan_scrub(store, list_partitions(store), deep=True).jobs


def names_of(jobs: Iterable[SegmentJob]) -> set[str]:
    return {job.name for job in jobs}


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(body))


def test_sample_has_its_share_and_depends_only_on_the_seed(home: Path) -> None:
    jobs = jobs_of(home)
    assert len(jobs) > 20
    for share in (1e-9, 0.05, 0.3, 0.999, 1):
        for seed in range(20):
            drawn = Sample(share=share, seed=seed).of(jobs)
            assert len(drawn) == math.ceil(share * len(jobs))
            places = [jobs.index(job) for job in drawn]
            assert places == sorted(set(places)), "a sample has the order of the jobs"
            assert names_of(Sample(share=share, seed=seed).of(jobs[::-1])) == names_of(drawn), (
                "a sample must not depend on the order of the jobs"
            )
    # Object ids differ in every run. The odds that 600 seeds never draw a segment are below 1e-25.
    draws = (Sample(share=0.1, seed=seed).of(jobs) for seed in range(600))
    assert {name for drawn in draws for name in names_of(drawn)} == names_of(jobs), (
        "every segment must be drawn by some seed"
    )
    assert Sample(share=0.5, seed=1).of(()) == ()


def test_sample_of_a_bucket_that_grew_has_mostly_the_same_segments(home: Path) -> None:
    jobs = jobs_of(home)
    before = names_of(Sample(share=0.3, seed=7).of(jobs[:-4]))
    assert len(before & names_of(Sample(share=0.3, seed=7).of(jobs))) >= len(before) - 4


@pytest.mark.parametrize("share", [0, -0.1, 1.01, math.nan, math.inf])
def test_sample_with_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(InvalidRequest, match="above 0%"):
        Sample(share=share, seed=1)


@pytest.mark.damages_bucket
def test_sampled_verify_finds_damage_in_its_sample_and_every_missing_object(home: Path) -> None:
    store = open_store((home / "bucket").as_uri(), {})
    names, jobs = list_partitions(store), jobs_of(home)
    bad = jobs[len(jobs) // 2]
    flip(home / "bucket" / bad.name)
    seeds_by_draw: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(600):
        seeds_by_draw[bad in Sample(share=0.4, seed=seed).of(jobs)].append(seed)
    for seed in seeds_by_draw[True][:5] + seeds_by_draw[False][:5]:
        sample = Sample(share=0.4, seed=seed)
        verdict = verify_bucket(store, names, now_ms=0, sample=sample)
        assert verdict is not None
        assert (verdict.segments, verdict.read_segments) == (len(jobs), math.ceil(0.4 * len(jobs)))
        is_drawn = bad in sample.of(jobs)
        assert {each.base_offset for each in verdict.report.of("corrupt")} == (
            {bad.entry.base_offset} if is_drawn else set()
        )
    assert all(seeds_by_draw.values()), "some seeds must draw the damaged segment and some must not"
    gone = jobs[0]
    (home / "bucket" / gone.name).unlink()
    for seed in range(3):
        verdict = verify_bucket(store, names, now_ms=0, sample=Sample(share=0.01, seed=seed))
        assert verdict is not None
        assert any(gone.entry.data_key in each.object for each in verdict.report.of("corrupt")), (
            "a missing object is found for any sample"
        )


def test_verify_can_be_cancelled_and_without_deep_reads_only_metadata(home: Path) -> None:
    store = open_store((home / "bucket").as_uri(), {})
    names = list_partitions(store)
    assert verify_bucket(store, names, now_ms=0, deep=True, should_stop=lambda: True) is None
    shallow = verify_bucket(store, names, now_ms=0)
    deep = verify_bucket(store, names, now_ms=0, deep=True)
    assert shallow is not None
    assert deep is not None
    assert (shallow.read_segments, shallow.report.read_bytes) == (0, 0)
    assert deep.read_segments == deep.segments == shallow.segments > 0
    assert replace(shallow, report=deep.report, read_segments=deep.segments) == deep


def test_verify_remote_reports_the_number_of_read_segments_and_the_seed(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    count = len([job for job in jobs_of(home) if "orders-" in job.prefix])
    assert invoke(["verify", "orders", "--remote", "--sample", "30%", "--seed", "5"]) == 0
    said = capfd.readouterr().err
    assert f"bytes of {math.ceil(0.3 * count)} of {count} segments decoded" in said
    assert "sample of --seed 5" in said
    assert invoke(["verify", "orders", "--remote", "--sample", "0.3", "-o", "json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["segments"], told["read_segments"], told["sample_share"]) == (count, math.ceil(0.3 * count), 0.3)
    assert isinstance(told["seed"], int)
    assert invoke(["verify", "--remote"]) == 0
    assert "metadata only" in capfd.readouterr().err


@pytest.mark.damages_bucket
def test_verify_remote_exits_3_for_warnings_and_4_for_damage(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (bad, *_) = [job for job in jobs_of(home) if "others-" in job.prefix]
    (home / "bucket" / bad.prefix / "data" / "notes.txt").write_text("mine")
    assert invoke(["verify", "others", "--remote", "--deep"]) == 3
    flip(home / "bucket" / bad.name)
    assert invoke(["verify", "others", "--remote"]) == 3, "without --deep no data is read"
    capfd.readouterr()
    assert invoke(["verify", "others/0", "--remote", "--deep", "-o", "json"]) == 4
    out, said = capfd.readouterr()
    corrupt = [each for each in json.loads(out)["findings"] if each["severity"] == "corrupt"]
    assert {each["path"] for each in corrupt} == {bad.name}
    assert "next: tiered scrub --deep others/0 --report found.json; tiered repair found.json" in said
    assert invoke(["verify", "orders", "--remote", "--deep"]) == 0


def test_verify_refuses_options_that_contradict_each_other(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for words, told in {
        "--sample 5%": "the disk is read completely",
        "--seed 5": "the disk is read completely",
        "--remote --seed 5": "--seed requires --sample",
        "--remote --sample 0": "above 0%",
        "--remote --sample 101%": "above 0%",
        "--remote --sample nan": "a share such as 5%",
        "--remote --sample %": "a share such as 5%",
        "--remote --fix-index": "tiered repair",
        "--remote ./data": "not a path: ./data",
    }.items():
        assert invoke(["verify", *words.split()]) == 2, words
        assert told in capfd.readouterr().err
    assert invoke(["verify", "nosuch", "--remote"]) == 1
