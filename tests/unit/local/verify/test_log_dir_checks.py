"""Checks across log directories, which a check of a single directory cannot make."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk

from local.errors import Corrupt
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition, deleted_directory, future_directory
from local.verify.directories import check_log_dirs
from local.verify.findings import Severity

A, B = "./a", "./b"
NAME = TopicPartition("t", 0)
MARK = "0" * 32


def found(*paths: str) -> list[tuple[Severity, str]]:
    disk = ModelDisk()
    for path in paths:
        disk.make_directory(path)
    return [(each.severity, each.where) for each in check_log_dirs(disk, (A, B, "./away"))]


def test_each_partition_once_and_a_move_in_progress_give_no_finding() -> None:
    assert found(f"{A}/t-0", f"{B}/t-1", f"{B}/{future_directory(NAME, MARK)}", f"{B}/lost+found") == []
    assert found(f"{B}/t-0", f"{A}/{deleted_directory(NAME, MARK)}") == []


def test_a_partition_in_two_directories_is_reported_and_refused_at_the_start() -> None:
    assert found(f"{A}/t-0", f"{B}/t-0") == [(Severity.CORRUPT, f"{B}/t-0")]
    disk = ModelDisk()
    for root in (A, B):
        disk.make_directory(f"{root}/t-0")
    with pytest.raises(Corrupt, match="more than one"):
        LogDirectories(disk, (A, B)).root_of(NAME)


@pytest.mark.parametrize("name", [future_directory(NAME, MARK), deleted_directory(NAME, MARK)])
def test_a_single_copy_under_the_directory_name_of_a_move_gets_a_warning(name: str) -> None:
    assert found(f"{A}/{name}", f"{B}/t-1") == [(Severity.WARNING, f"{A}/{name}")]


def test_a_move_that_ends_between_two_listings_gives_no_finding() -> None:
    disk = ModelDisk()
    for path in (f"{A}/t-0", f"{B}/{future_directory(NAME, MARK)}"):
        disk.make_directory(path)
    steps = iter(
        [
            lambda: None,
            lambda: (
                disk.rename(f"{A}/t-0", f"{A}/{deleted_directory(NAME, MARK)}"),
                disk.rename(f"{B}/{future_directory(NAME, MARK)}", f"{B}/t-0"),
            ),
        ]
    )

    class Moving:
        def list(self, path: str) -> list[str]:
            next(steps, lambda: None)()
            return disk.list(path)

    assert check_log_dirs(Moving(), (A, B)) == []  # type: ignore[arg-type]
