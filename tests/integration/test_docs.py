"""Commands of the tutorial and the Python examples run as printed, and print the output shown on the pages.

A block of the tutorial to run is marked ``<!-- run -->`` (``<!-- run spark -->`` needs Java). The ``text`` block right
after it is its stdout. It is compared exactly, or with ``<!-- shape -->`` with every number masked, or with
``<!-- some -->`` with other lines allowed in between. A line ``...`` in a sample stands for any lines.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_server import Commands

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "first-road.md"
KCAT = ROOT / "docs" / "tutorial" / "kcat.md"
NOTEBOOK = ROOT / "docs" / "tutorial" / "second-road.md"
LOOKING = ROOT / "docs" / "how-to" / "look-inside-a-log.md"
EMBEDDING = ROOT / "docs" / "how-to" / "embed-in-python.md"
README = ROOT / "README.md"
PROGRAMS = ROOT / "docs" / "tutorial" / "python.md"
HOW_TO = ROOT / "docs" / "how-to"
SERVE = "tiered serve --remote file://$PWD/decade/bucket"
LIMIT_S = 60.0

_RUN = re.compile(
    r"<!-- run(?P<spark> spark)? -->\n```sh\n(?P<command>.*?)```\n"
    r"(?:\n(?:<!-- (?P<how>shape|some) -->\n)?```text\n(?P<sample>.*?)```\n)?",
    re.DOTALL,
)
_CELL = re.compile(
    r"```python\n(?P<command>.*?)```\n(?:\n(?:<!-- (?P<how>shape|some) -->\n)?```text\n(?P<sample>.*?)```\n)?",
    re.DOTALL,
)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"<?\d[\d,]*(\.\d+)?( ([KMGT]i)?B)?")


@dataclass(frozen=True, slots=True)
class Step:
    """One block to run, and its expected output (None: any output)."""

    command: str
    needs_spark: bool
    how: str
    sample: str | None


def steps_of(page: Path) -> list[Step]:
    return [
        Step(found["command"], bool(found["spark"]), found["how"] or "exact", found["sample"])
        for found in _RUN.finditer(page.read_text())
    ]


STEPS = steps_of(TUTORIAL)


@pytest.fixture(scope="module", autouse=True)
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """``tiered`` and ``python`` of this checkout, without half a second of imports for each command."""
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        _PATH.append(str(commands.directory))
        yield commands
        _PATH.clear()


_PATH: list[str] = []


def shell(command: str, folder: Path) -> str:
    """The stdout of a block run by bash, which stops at the first failing command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    environment |= {"PATH": os.pathsep.join([*_PATH, os.environ["PATH"]]), "PYTHONPATH": str(ROOT)}
    script = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_output(step: Step, printed: str) -> None:
    """Compare line by line with normalised blanks. The module docstring explains the kinds."""
    if step.sample is None:
        return
    mask = step.how == "shape"
    wanted, found = lines_of(step.sample, mask), lines_of(printed, mask)
    if step.how == "some" or "..." in wanted:
        rest = iter(found)
        missing = [line for line in wanted if line != "..." and line not in rest]
        assert not missing, f"{step.command}: {missing} not in {found}"
    else:
        assert found == wanted, step.command


def lines_of(text: str, mask: bool) -> list[str]:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return [_NUMBER.sub("#", line) for line in lines] if mask else lines


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory after the tutorial was run up to Spark, with every output compared."""
    folder = tmp_path_factory.mktemp("tutorial")
    for step in STEPS:
        if not step.needs_spark:
            check_output(step, shell(step.command, folder))
    return folder


def test_tutorial_commands_print_the_output_shown(road: Path) -> None:
    assert (road / "road" / "tiered.toml").exists()
    assert sum(step.sample is not None for step in STEPS) >= 7, "the page must have at least seven marked samples"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of the process that the tutorial with kcat starts in a second terminal."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = [*SERVE.replace("$PWD", str(folder)).split()[1:], "--port", port]
    output = folder / "serve.txt"
    with output.open("w") as out:
        child = subprocess.Popen([sys.executable, "-m", "tiered", *words], cwd=ROOT, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + LIMIT_S
        while f"serving 1 topics to Kafka clients at 127.0.0.1:{port} until Ctrl-C" not in output.read_text():
            assert child.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        yield f"localhost:{port}"
        child.terminate()
        assert child.wait(LIMIT_S) == 0, output.read_text()
    finally:
        child.kill()
        child.wait()


@pytest.mark.server
def test_tutorial_with_kcat_prints_the_output_shown(tmp_path: Path, commands: Commands) -> None:
    """By kcat, or without one by `support/kcat.py`."""
    kcat = commands.directory / "kcat"
    if shutil.which("kcat") is None:
        kcat.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/unit/support/kcat.py" "$@"\n')
        kcat.chmod(0o755)
    assert f"```sh\n{SERVE}\n```" in KCAT.read_text()
    first, *others = steps_of(KCAT)
    check_output(first, shell(first.command, tmp_path))
    with serving(tmp_path) as address:
        for step in others:
            printed = shell(step.command.replace("localhost:9092", address), tmp_path)
            check_output(step, printed.replace(address.replace("localhost", "127.0.0.1"), "127.0.0.1:9092"))
    assert len(others) == 4


def test_commands_of_the_guide_on_log_inspection_print_the_output_shown(tmp_path: Path) -> None:
    for step in steps_of(LOOKING):
        check_output(step, shell(step.command, tmp_path))


@pytest.mark.deep("a Spark application")
@pytest.mark.spark
def test_tutorial_spark_job_prints_the_output_shown(road: Path) -> None:
    (step,) = [step for step in STEPS if step.needs_spark]
    check_output(step, shell(step.command, road))


@pytest.mark.deep("a Spark application for the notebook")
@pytest.mark.spark
def test_notebook_cells_print_the_output_shown(tmp_path: Path) -> None:
    """All cells run as one program, with a separator line printed after each cell."""
    cells = [
        Step(found["command"], True, found["how"] or "exact", found["sample"])
        for found in _CELL.finditer(NOTEBOOK.read_text())
    ]
    end = "-- end of a cell"
    printed = run_python("\n".join(f"{cell.command}\nprint({end!r})" for cell in cells), tmp_path).split(f"{end}\n")
    for cell, told in zip(cells, printed, strict=False):
        check_output(cell, told)
    assert len(printed) == len(cells) + 1
    assert sum(cell.sample is not None for cell in cells) == 7
    assert (tmp_path / "segments.svg").read_text().startswith("<svg")


def test_output_that_differs_from_its_sample_fails() -> None:
    with pytest.raises(AssertionError):
        check_output(Step("", False, "exact", "a 1\n"), "a 2\n")
    with pytest.raises(AssertionError):
        check_output(Step("", False, "shape", "a 1\n"), "b 1\n")
    with pytest.raises(AssertionError):
        check_output(Step("", False, "some", "a\nb\n"), "b\na\n")
    check_output(Step("", False, "shape", "x  1,000  2 KiB\n"), "x 7 0 B\n")


def test_readme_begins_with_the_demo_and_the_tests() -> None:
    first = re.search(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert first is not None
    assert first[1].splitlines()[:2] == [".ci/with tiered demo", ".ci/with pytest"]


@pytest.fixture(scope="module")
def programs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory after the programs of `PROGRAMS` without Spark were run."""
    folder = tmp_path_factory.mktemp("programs")
    shell("tiered init road", folder)
    local, remote, _ = _PYTHON.findall(PROGRAMS.read_text())
    run_python(local, folder)
    printed = run_python(remote, folder)
    assert sum(int(line.split()[-1]) for line in printed.splitlines() if line.startswith("clicks/")) == 10_000
    return folder


def test_tutorial_programs_run(programs_folder: Path) -> None:
    assert list((programs_folder / "road" / "bucket").glob("clicks-*/*/data/*.log"))


@pytest.mark.deep("a Spark application")
@pytest.mark.spark
def test_tutorial_spark_program_runs(programs_folder: Path) -> None:
    printed = run_python(_PYTHON.findall(PROGRAMS.read_text())[-1], programs_folder)
    counts = re.findall(r"\|\s+\d+\|\s*(\d+)\|", printed)
    assert sum(map(int, counts)) == 10_000


def test_queries_by_arrow_run(programs_folder: Path) -> None:
    duckdb, polars, torch = _PYTHON.findall((HOW_TO / "query-with-arrow.md").read_text())
    counts = re.findall(r"│ +([012]) │ +(\d+) │ +(\d+) │", run_python(duckdb, programs_folder))
    assert [int(last) + 1 for _, _, last in counts] == [int(records) for _, records, _ in counts]
    assert sum(int(records) for _, records, _ in counts) == 10_000
    assert all(records in run_python(polars, programs_folder) for _, records, _ in counts)
    assert int(run_python(torch, programs_folder)) == sum(len(b"click %d" % number) for number in range(10_000))


def test_the_sync_into_an_iceberg_table_runs(programs_folder: Path) -> None:
    (program,) = _PYTHON.findall((HOW_TO / "sync-to-iceberg.md").read_text())
    (programs_folder / "lake").mkdir()
    assert run_python(program, programs_folder).split() == ["10000", "0", "10000"]


def test_code_blocks_of_the_embedding_guide_run_as_one_program(tmp_path: Path) -> None:
    shell("tiered init road", tmp_path)
    printed = run_python("\n".join(_PYTHON.findall(EMBEDDING.read_text())), tmp_path)
    assert "orders/1" in printed
    assert "internal error" not in printed


def test_sizing_program_with_own_figures_runs(tmp_path: Path) -> None:
    printed = run_python("\n".join(_PYTHON.findall((HOW_TO / "size-a-deployment.md").read_text())), tmp_path)
    assert [line.split()[0] for line in printed.splitlines()] == ["current"] + ["segment.bytes=256MiB"] * 2 + [
        "segment.bytes=1.00GiB"
    ] * 2


def run_python(code: str, folder: Path) -> str:
    return shell(f"python - <<'PY'\n{code}\nPY", folder)
