"""The script that finds the tests of a product file finds mirrored and importing tests, through packages too."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module, which parses each test module once."""
    spec = importlib.util.spec_from_file_location("run_for", ROOT / "tests/run_for.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(*words: str) -> list[str]:
    """The lines that `tests/run_for.py --list` prints."""
    command = [sys.executable, str(ROOT / "tests/run_for.py"), "--list", *words]
    return subprocess.check_output(command, cwd=ROOT, text=True, timeout=120).splitlines()


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("remote/gc/orphan_search.py", "tests/unit/remote/gc/test_orphan_search.py"),  # mirrored
        ("policies/copy_lag.py", "tests/property/test_copy_due.py"),  # imported
        ("local/log/log.py", "tests/unit/local/log/test_log_recovery.py"),  # imported from the package `local.log`
        ("docs/index.md", "tests/unit/project"),
        ("tests/unit/policies/test_deferrals.py", "tests/unit/policies/test_deferrals.py"),
    ],
)
def test_a_test_of_a_file_is_found(script: ModuleType, file: str, test: str) -> None:
    assert test in script.tests_of([file])


def test_tests_of_other_kinds_are_counted_and_not_run() -> None:
    *chosen, last = listed("remote/gc/orphan_search.py")
    assert all(each.startswith(("tests/unit/", "tests/property/")) for each in chosen)
    assert int(last.split()[2]) > 0


def test_a_file_of_no_package_has_no_tests() -> None:
    assert listed("localstack/fetched.py") == ["not run: 0 modules of other kinds"]


def test_changed_and_new_files_are_found(tmp_path: Path) -> None:
    for name, text in (("local/a.py", ""), ("tests/unit/local/test_a.py", ""), ("tests/unit/local/test_b.py", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "tests/run_for.py", tmp_path / "tests")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "local", "tests"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    command = [sys.executable, "tests/run_for.py", "--list", "--changed"]
    assert subprocess.check_output(command, cwd=tmp_path, text=True).splitlines() == [
        "not run: 0 modules of other kinds"
    ]
    (tmp_path / "local/a.py").write_text("A = 1\n")
    assert "tests/unit/local/test_a.py" in subprocess.check_output(command, cwd=tmp_path, text=True).splitlines()
    (tmp_path / "tests/unit/local/test_c.py").write_text("from local import a\n")
    assert "tests/unit/local/test_c.py" in subprocess.check_output(command, cwd=tmp_path, text=True).splitlines()
