"""Bytes are decoded in several threads from the first time on.

What msgspec 0.22 knows of a class is made when it first decodes into it, and found half-made by a second thread that
does so at the same time: the process ends with a segmentation fault. So decoders are made when modules are imported.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from remote_samples import head, stored_row

from remote.manifest.manifest import encode_head

ROOT = Path(__file__).parents[4]
MODULES = [path for room in ("local", "remote", "policies", "tiered") for path in sorted((ROOT / room).rglob("*.py"))]
_BUILTIN = {"dict", "list", "tuple", "str", "int", "bytes", "float", "bool", "object"}

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from remote.manifest.manifest import decode_head
body, go, failed = sys.stdin.buffer.read(), threading.Barrier(8), []

def work():
    go.wait()
    try:
        decode_head(body)
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
sys.exit(len(failed))
"""


def made_when_called(source: str) -> list[int]:
    """The lines of functions that decode into a class of ours without a decoder that was made before."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode":
            for given in node.keywords:
                names = {each.id for each in ast.walk(given.value) if isinstance(each, ast.Name)}
                if given.arg == "type" and names - _BUILTIN:
                    found.append(node.lineno)
    return found


def converted_unprepared(source: str) -> list[int]:
    """The lines that convert into a class of ours of which no decoder is made when the module is imported."""
    tree = ast.parse(source)
    prepared = {
        each.id
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef) and "Decoder(" in ast.unparse(statement)
        for each in ast.walk(statement)
        if isinstance(each, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.convert":
            of = node.args[1].value if isinstance(node.args[1], ast.Subscript) else node.args[1]
            if {each.id for each in ast.walk(of) if isinstance(each, ast.Name)} - _BUILTIN - prepared:
                found.append(node.lineno)
    return found


def test_what_is_looked_for_would_be_found() -> None:
    source = (
        "def f(b):\n    g = msgspec.json.decode(b, type=dict[str, int])\n    return msgspec.json.decode(b, type=Head)\n"
    )
    assert made_when_called(source) == [3]
    source = "def f(b):\n    msgspec.convert(b, dict[str, object])\n    return msgspec.convert(b, Prices)\n"
    assert converted_unprepared(source) == [3]
    assert converted_unprepared("_PRICES = msgspec.json.Decoder(Prices)\n" + source) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_decoder_is_made_when_a_function_is_called(path: Path) -> None:
    assert made_when_called(path.read_text()) == []
    assert converted_unprepared(path.read_text()) == []


def test_eight_threads_decode_the_first_head_of_a_process() -> None:
    body = encode_head(head(stored_row()))
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", PROGRAM], input=body, cwd=ROOT, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
