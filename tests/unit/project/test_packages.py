"""The wheel has every package: a folder that pyproject.toml does not list would be missing from an installation."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
INSTALLED_AS = {"tiered.spark.discovery": "pyspark_tiered"}  # Spark imports it by that name


def test_every_package_folder_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("local", "remote", "policies", "tiered")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(INSTALLED_AS.get(each, each) for each in folders)
