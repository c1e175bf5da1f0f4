"""Bytes are decoded in several threads from the first decode on.

msgspec 0.22 builds its description of a class at the first decode into the class. A second thread that decodes at the
same time finds it half built, and the process ends with a segmentation fault. So decoders are created when modules are
imported.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from remote_samples import manifest, stored_row
from source_files import trees

from remote.manifest.manifest import encode_manifest

ROOT = Path(__file__).parents[4]
_BUILTIN = {"dict", "list", "tuple", "str", "int", "bytes", "float", "bool", "object"}

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from remote.manifest.manifest import decode_manifest
body, go, failed = sys.stdin.buffer.read(), threading.Barrier(8), []

def work():
    go.wait()
    try:
        decode_manifest(body)
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
sys.exit(len(failed))
"""


def made_when_called(tree: ast.Module) -> list[int]:
    """The lines of functions that decode into a class of this project without a decoder from the import."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode":
            for given in node.keywords:
                names = {each.id for each in ast.walk(given.value) if isinstance(each, ast.Name)}
                if given.arg == "type" and names - _BUILTIN:
                    found.append(node.lineno)
    return found


def converted_unprepared(tree: ast.Module) -> list[int]:
    """The lines that convert into a class of this project without a decoder from the import."""
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


def test_the_search_for_late_decoders_finds_an_example() -> None:
    source = (
        "def f(b):\n    g = msgspec.json.decode(b, type=dict[str, int])\n    return msgspec.json.decode(b, type=Head)\n"
    )
    assert made_when_called(ast.parse(source)) == [3]
    source = "def f(b):\n    msgspec.convert(b, dict[str, object])\n    return msgspec.convert(b, Prices)\n"
    assert converted_unprepared(ast.parse(source)) == [3]
    assert converted_unprepared(ast.parse("_PRICES = msgspec.json.Decoder(Prices)\n" + source)) == []


def test_every_decoder_is_created_when_its_module_is_imported() -> None:
    decoding = trees(r"\.decode\(|msgspec\.convert")
    found = {name: made_when_called(tree) + converted_unprepared(tree) for name, tree in decoding}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(found) > 10


def test_eight_threads_decode_the_first_manifest_of_a_process() -> None:
    body = encode_manifest(manifest(stored_row()))
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", PROGRAM], input=body, cwd=ROOT, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
