"""Light start: importing the package and printing help import no heavy module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ONLY_FOR_ROUNDS = {
    "tiered.maintenance.maintenance",
    "tiered.maintenance.apply",
    "tiered.maintenance.upload_and_commit",
    "tiered.maintenance.view_building",
    "remote.upload.segment_upload",
    "asyncio",
}
NOT_FOR_LOOKS = {
    "local.kernels.dispatch",
    "local.kernels._kernels",
    "local.log.loading",
    "local.log.recovery",
    "local.log.encoding",
    "local.cleaner.offset_map",
    "tiered.read.reader",
    "policies.decisions",
    "policies.compaction",
    "remote.gc.partition_removal",
    "concurrent.futures",
    "remote.store.probe",
}
WEB = {"starlette", "uvicorn", "h11", "anyio", "jinja2"}
HEAVY = (
    *WEB,
    "numpy",
    "pyarrow",
    "pandas",
    "pyspark",
    "fsspec",
    "s3fs",
    "boto3",
    "botocore",
    "aiohttp",
    "rich",
    "cramjam",
)


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a new interpreter has loaded after `code`."""
    tail = "; import sys; print('|'.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return set(done.stdout.strip().splitlines()[-1].split("|"))


@pytest.mark.parametrize(
    "code",
    [
        "import tiered",
        "import policies.plan, policies.invariants, policies.cost.storage_cost",
        "from tiered import Config; Config.load(None)",
        "from tiered.cli.main import invoke; invoke(['--help'])",
        "from tiered.cli.main import invoke; invoke(['--version'])",
        "from tiered.cli.main import invoke; invoke(['run', '--help'])",
        "from tiered.cli.main import invoke; invoke(['web', '--help'])",
        "from tiered.cli.main import invoke; invoke(['adopt', '--help'])",
        "from tiered.cli.main import invoke; invoke(['demo', '--help'])",
        "from tiered.cli.main import invoke; invoke(['consume', '--help'])",
        "from tiered.cli.main import invoke; invoke(['dump', '--help'])",
        "from tiered.cli.main import invoke; invoke(['verify', '--help'])",
        "from tiered.cli.main import invoke; invoke(['get-offsets', '--help'])",
        "from tiered.cli.main import invoke; invoke(['delete-records', '--help'])",
    ],
)
def test_import_and_help_load_no_heavy_module(code: str) -> None:
    assert loaded_by(code).isdisjoint(HEAVY)


def test_version_loads_no_module_for_results() -> None:
    loaded, _ = _modules_after(".", "--version")
    assert loaded.isdisjoint({"msgspec", "tomllib", "tiered.cli.render"})


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a tiered topic: closed segments in the bucket and on the disk, and an active segment."""
    root = tmp_path_factory.mktemp("node")
    (root / "bucket").mkdir()
    (root / "records").write_text("".join(f"record {at}\n" for at in range(200)))
    (root / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{root}/bucket"\n')
    settings = " ".join(f"-X {each}" for each in ("segment.bytes=1024", "remote.storage.enable=true"))
    commands = [f"topic create orders {settings}", f"append orders {root}/records --batch 10", "run --once"]
    start = f"import sys; from tiered.cli.main import invoke; at = ['-q', '-C', {str(root)!r}]; "
    made = start + "; ".join(f"assert invoke([*at, *{each.split()!r}]) == 0" for each in commands)
    subprocess.run([sys.executable, "-c", made], check=True, capture_output=True)
    return str(root)


def _modules_after(root: str, *words: str) -> tuple[set[str], str]:
    """All modules that a command in that directory loads, and its output."""
    ran = f"import sys; from tiered.cli.main import invoke; assert invoke(['-q', '-C', {root!r}, *{words!r}]) == 0; "
    code = ran + "print('\\n' + '|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, _, loaded = done.stdout.strip().rpartition("\n")
    return set(loaded.split("|")), said


@pytest.mark.parametrize("words", [["status"], ["status", "-o", "json"], ["status", "-p"], ["topic", "list"]], ids=str)
def test_read_only_commands_load_no_heavy_and_no_maintenance_modules(at_work: str, words: list[str]) -> None:
    loaded, said = _modules_after(at_work, *words)
    assert "orders" in said
    assert loaded.isdisjoint(ONLY_FOR_ROUNDS)
    assert {name.split(".")[0] for name in loaded}.isdisjoint({*HEAVY} - {"cramjam", "rich"})


def test_plan_without_transactions_loads_no_heavy_module(at_work: str) -> None:
    loaded, _ = _modules_after(at_work, "plan", "-o", "json")
    assert "policies.plan" in loaded
    assert {name.split(".")[0] for name in loaded}.isdisjoint({*HEAVY} - {"cramjam", "rich"})


def test_status_loads_no_module_for_appends_reads_or_policies(at_work: str) -> None:
    loaded, said = _modules_after(at_work, "status", "-o", "json")
    assert "tiered.manager.manager" in loaded
    assert '"remote_segments": 0' not in said, "the manifest must have entries to read"
    assert loaded.isdisjoint(NOT_FOR_LOOKS)


def test_web_server_is_loaded_only_when_a_port_is_opened(tmp_path: Path) -> None:
    start = f"from tiered.cli.main import invoke; at = ['-q', '-C', {str(tmp_path)!r}]; "
    commands = [["init"], ["topic", "create", "orders"], ["run", "--once"], ["status"], ["plan"], ["doctor"]]
    assert loaded_by(f"{start}codes = [invoke([*at, *each]) for each in {commands!r}]").isdisjoint(WEB)
    assert loaded_by(f"{start}assert invoke([*at, 'run', '--once', '--metrics', ':0']) == 0") >= WEB


def test_exit_of_a_command_skips_the_garbage_collection_of_its_objects() -> None:
    told = "print(len(gc.get_objects()), gc.get_freeze_count())"
    code = f"import gc\nfrom tiered.cli.main import run\ntry:\n    run(['--version'])\nfinally:\n    {told}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    searched, left_alone = map(int, done.stdout.split()[-2:])
    assert searched < 100 < left_alone


def test_public_names_of_the_package_are_imported_on_access() -> None:
    import tiered
    from tiered.config.config import Config

    assert tiered.Config is Config
    assert set(tiered.__all__) <= set(dir(tiered))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tiered.nothing  # noqa: B018


def test_version_equals_that_of_the_distribution() -> None:
    import tomllib

    import tiered

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert tiered.__version__ == project["version"]
