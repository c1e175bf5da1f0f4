"""Run the tests of product files: the unit tests that mirror a file, and the unit and property tests that import it.

    .ci/with python tests/run_for.py remote/gc/orphan_search.py policies/plan.py
    .ci/with python tests/run_for.py --changed            # files that differ from HEAD; or from another revision

Other kinds of tests (crash, integration, spark, ...) that import a file are counted and not run.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("local", "remote", "policies", "tiered")


def tests_of(files: Iterable[str]) -> set[str]:
    """Every test module of these files. A test stands for itself, a page for the tests of the documentation."""
    found, modules = set[str](), sorted((ROOT / "tests").rglob("test_*.py"))
    for file in map(Path, files):
        if file.suffix == ".md":
            found.add("tests/unit/project")
        elif file.name.startswith("test_"):
            found.add(file.as_posix())
        elif file.parts[0] in PACKAGES and file.suffix == ".py":
            mirrored = (ROOT / "tests/unit" / file.parent).glob(f"test_{file.stem}*.py")
            importing = (test for test in modules if file.as_posix() in imported_files(test))
            found |= {test.relative_to(ROOT).as_posix() for test in (*mirrored, *importing)}
    return found


@cache
def imported_files(path: Path) -> frozenset[str]:
    """The product files that a Python file imports, as paths below the root."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {file_of(each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {file_of(f"{node.module}.{each.name}") or file_of(node.module, each.name) for each in node.names}
    return frozenset(found)


@cache
def file_of(module: str, name: str = "") -> str:
    """The file of a product module, or of the module from which a package takes `name`; "" for other modules."""
    base = ROOT.joinpath(*module.split("."))
    is_package = (base / "__init__.py").exists()  # a directory may be left over with compiled files alone
    if module.split(".")[0] not in PACKAGES or not (is_package or base.with_suffix(".py").exists()):
        return ""
    if not is_package:
        return base.with_suffix(".py").relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse((base / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and name in {each.name for each in node.names}:
            return file_of(node.module)
    return (base / "__init__.py").relative_to(ROOT).as_posix()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="paths below the root")
    parser.add_argument("--changed", nargs="?", const="HEAD", metavar="REVISION", help="files that differ from it")
    parser.add_argument("--list", action="store_true", help="print the tests, run nothing")
    asked = parser.parse_args()
    queries = (["diff", "--name-only", "--diff-filter=d", asked.changed], ["ls-files", "-o", "--exclude-standard"])
    for words in queries if asked.changed else ():
        asked.files += subprocess.check_output(["git", *words], cwd=ROOT, text=True).splitlines()
    found = tests_of(asked.files)
    chosen = sorted(each for each in found if each.startswith(("tests/unit/", "tests/property/")))
    print(*chosen, f"not run: {len(found) - len(chosen)} modules of other kinds", sep="\n", flush=True)
    run = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not server", *chosen]
    return 0 if asked.list or not chosen else subprocess.call(run, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
