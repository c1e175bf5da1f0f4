"""Syntax trees of the product's modules, for tests of rules that every module keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("local", "remote", "policies", "tiered")


def trees(pattern: str, packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, ast.Module]]:
    """Yield (path below the root, syntax tree) of each module whose text has a match of a regular expression.

    Few modules have one as a rule, and to parse all of them takes seconds.
    """
    wanted = re.compile(pattern)
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if wanted.search(text := path.read_text()):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))
