"""The table of modules that delete objects names every one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import remote.gc

ROOT = Path(__file__).parents[4]
CALLEE = re.compile(r"(^|[._])store\.delete$")
PASS_ON = ("remote/store/", "remote/manifest/sealing.py")
BY_CALL = {"remote.gc.delayed_delete", "remote.gc.partition_removal"}  # they delete by `delete_objects`


def deleting_modules() -> set[str]:
    """Modules with a call of ``store.delete``, or with a definition that passes one on."""
    found = set()
    for package in ("remote", "tiered"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            if not name.startswith(PASS_ON) and any(CALLEE.search(ast.unparse(call.func)) for call in calls):
                found.add(name.removesuffix(".py").replace("/", "."))
    return found


def test_the_table_of_deleting_modules_is_complete() -> None:
    rows = [line for line in (remote.gc.__doc__ or "").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row.split("|")[1])}
    assert named - BY_CALL == deleting_modules()
    assert named >= BY_CALL
