"""``tiered placement``: parsing of broker lists, and output that Kafka's reassignment tool reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered.cli.main import invoke

SIX = "0:rack1,1:rack3,2:rack3,3:rack2,4:rack2,5:rack1"


def test_placement_json_is_kafkas_reassignment_file(capfd) -> None:
    words = ["placement", "--brokers", SIX, "-p", "2", "-r", "3", "--start", "0", "--shift", "0", "--topic", "orders"]
    assert invoke([*words, "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": 0, "replicas": [0, 3, 1]},
            {"topic": "orders", "partition": 1, "replicas": [3, 1, 5]},
        ],
    }


def test_placement_reads_brokers_from_a_file_and_shows_their_racks(tmp_path: Path, capfd) -> None:
    (tmp_path / "fleet").write_text("# the old ones\n0:a, 1:b\n\n2:a # and the new one\n")
    assert invoke(["placement", str(tmp_path / "fleet"), "-p", "1", "-r", "2", "--start", "1", "--shift", "0"]) == 0
    out, err = capfd.readouterr()
    assert out.split() == ["PARTITION", "LEADER", "REPLICAS", "RACKS", "0", "1", "1,2", "b,a"]
    assert err == "brokers in turn: 0,1,2 --start 1 --shift 0\n"


def test_placement_with_the_printed_start_and_shift_repeats_the_assignment(capfd) -> None:
    words = ["placement", "--brokers", "0,1,2,3,4", "-p", "9", "-r", "3", "-o", "json"]
    assert invoke(words) == 0
    out, err = capfd.readouterr()
    assert invoke([*words, *err.split()[-4:]]) == 0
    assert capfd.readouterr() == (out, err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--brokers", "0,1", "-r", "3"], "fewer brokers than replicas"),
        (["--brokers", "0:a,1", "-r", "1"], "some brokers have no rack"),
        (["--brokers", "a", "-r", "1"], "expected=an id"),
        (["--brokers", "1:", "-r", "1"], "expected=an id"),
        (["--brokers", "", "-r", "1"], "there is none"),
        (["-r", "1"], "either --brokers or a file"),
        (["fleet", "--brokers", "0", "-r", "1"], "either --brokers or a file"),
    ],
)
def test_placement_refuses_an_invalid_broker_list(words: list[str], said: str, capfd) -> None:
    assert invoke(["placement", *words, "-p", "1"]) == 2
    assert said in capfd.readouterr().err
