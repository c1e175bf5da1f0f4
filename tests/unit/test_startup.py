"""Importing the package and asking for help stay light: what is heavy is imported where it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ONLY_FOR_ROUNDS = {
    "tiered.rounds",
    "tiered.apply",
    "tiered.committing",
    "tiered.view_building",
    "remote.transfer",
    "asyncio",
}
HEAVY = ("numpy", "pyarrow", "pandas", "pyspark", "fsspec", "s3fs", "boto3", "botocore", "aiohttp", "rich", "cramjam")


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after `code`."""
    tail = "; import sys; print('|'.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return set(done.stdout.strip().splitlines()[-1].split("|"))


@pytest.mark.parametrize(
    "code",
    [
        "import tiered",
        "import policies.plan, policies.invariants, policies.cost",
        "from tiered import Config; Config.load(None)",
        "from tiered.cli.main import invoke; invoke(['--help'])",
        "from tiered.cli.main import invoke; invoke(['--version'])",
        "from tiered.cli.main import invoke; invoke(['run', '--help'])",
        "from tiered.cli.main import invoke; invoke(['demo', '--help'])",
        "from tiered.cli.main import invoke; invoke(['consume', '--help'])",
        "from tiered.cli.main import invoke; invoke(['dump', '--help'])",
        "from tiered.cli.main import invoke; invoke(['verify', '--help'])",
        "from tiered.cli.main import invoke; invoke(['get-offsets', '--help'])",
        "from tiered.cli.main import invoke; invoke(['delete-records', '--help'])",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert loaded_by(code).isdisjoint(HEAVY)


def test_status_loads_nothing_that_only_rounds_need(tmp_path: Path) -> None:
    start = f"import sys; from tiered.cli.main import invoke; at = ['-q', '-C', {str(tmp_path)!r}]; "
    made = start + "sys.exit(invoke([*at, 'init']) + invoke([*at, 'topic', 'create', 'orders']))"
    subprocess.run([sys.executable, "-c", made], check=True, capture_output=True)
    code = start + "assert invoke([*at, 'status']) == 0; print('|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.strip().splitlines()[-1].split("|"))
    assert "tiered.manager" in loaded
    assert loaded.isdisjoint(ONLY_FOR_ROUNDS)
    assert {name.split(".")[0] for name in loaded}.isdisjoint({"pyarrow", "pandas", "boto3", "aiohttp", "s3fs"})


def test_the_packages_names_are_there_when_they_are_asked_for() -> None:
    import tiered
    from tiered.config import Config

    assert tiered.Config is Config
    assert set(tiered.__all__) <= set(dir(tiered))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tiered.nothing  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    import tomllib

    import tiered

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert tiered.__version__ == project["version"]
