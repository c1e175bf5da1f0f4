"""Every deletion of objects passes one function, and the table of its callers names each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_files import calls, trees

import remote.gc
from remote.gc.object_deletion import DeleteReason

STORE_DELETE = re.compile(r"(^|[._])store\.delete$")
DOOR = re.compile(r"(^|\.)(delete_objects|delete_unlinked)$")
STORES = "remote/store/"


def modules_with_a_call(callee: re.Pattern[str]) -> Iterator[str]:
    for name, tree in trees(r"delete(_objects|_unlinked)?\(", ("remote", "tiered")):
        if not name.startswith(STORES) and any(callee.search(ast.unparse(call.func)) for call in calls(tree)):
            yield name.removesuffix(".py").replace("/", ".")


def test_only_object_deletion_calls_the_delete_of_a_store() -> None:
    assert list(modules_with_a_call(STORE_DELETE)) == ["remote.gc.object_deletion"]


def test_the_table_of_deleting_modules_is_complete() -> None:
    rows = [line.split("|") for line in (remote.gc.__doc__ or "").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row[1])}
    assert named == set(modules_with_a_call(DOOR))


def test_the_table_of_deleting_modules_names_every_reason() -> None:
    rows = [line.split("|") for line in (remote.gc.__doc__ or "").splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"[A-Z_]{3,}", row[2])}
    assert named == {reason.name for reason in DeleteReason}
