"""The package as installed by a user: built as a wheel, installed into its own environment, run by ``spark-submit``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from bucket_samples import NOW_MS
from bucket_truth import assert_sound

from local.errors import InvalidRequest
from local.records.batch import encode_batch
from tiered.spark.session import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.deep("a wheel, an environment and a Spark application")]

ROOT = Path(__file__).parents[2]
KEYS = 7


class Installed:
    """A virtual environment with the wheel. Dependencies come from the environment of the tests."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self.folder, self.home = folder, Path(pyspark.__file__).parent
        source, self.python = folder / "source", folder / "env" / "bin" / "python"
        for room in ("local", "remote", "policies", "tiered"):
            shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
        (source / "docs").mkdir()
        for name in ("pyproject.toml", "README.md", "docs/LICENSE"):
            shutil.copy(ROOT / name, source / name)
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        fast = {**os.environ, "CFLAGS": "-O0"}  # optimizing the kernels takes most of the build
        wheel = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder / "dist", source]
        self._run([*pip, *wheel], fast)
        (self.wheel,) = (folder / "dist").glob("*.whl")
        self._run([sys.executable, "-m", "venv", "--without-pip", folder / "env"])
        self._run([*pip, "--python", self.python, "install", "--no-deps", "--no-index", self.wheel])
        shutil.rmtree(source)
        packages = self._run([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout
        # Directories of a path file come last, and path files in them are ignored, so that no checkout is imported.
        needs = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        (Path(packages.strip()) / "needs.pth").write_text("\n".join(needs) + "\n")
        self.package = str(Path(packages.strip()) / "tiered")

    @property
    def environment(self) -> dict[str, str]:
        """Variables as after ``source env/bin/activate``. None of them names the package or the interpreter."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        path = f"{self.python.parent}{os.pathsep}{kept['PATH']}"
        known = {"JAVA_HOME": ensure_java(), "SPARK_HOME": str(self.home), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**kept, **known, "PATH": path, "VIRTUAL_ENV": str(self.folder / "env")}

    def tiered(self, *words: object) -> str:
        return self._run([self.python.parent / "tiered", *words], self.environment).stdout

    def submit(self, master: str, *words: object) -> str:
        java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        settings = {
            "spark.driver.extraJavaOptions": java,
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": java,
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = [self.home / "bin" / "spark-submit", "--master", master, *conf, *words]
        return self._run(command, self.environment).stdout

    def script(self) -> str:
        """The script that ``spark-submit`` gets for the command, as in the how-to page."""
        return self._run([self.python, "-m", "tiered.spark.submit"], self.environment).stdout.strip()

    def _run(self, words: list[object], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(each) for each in words],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.folder,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, f"{words[:4]}: {done.stderr[-3000:]} {done.stdout[-1000:]}"
        return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    try:
        ensure_java()
    except InvalidRequest as error:
        pytest.skip(str(error))
    return Installed(tmp_path_factory.mktemp("installed"))


def fill(bucket):
    for number in range(6):
        base = number * 20
        records = [(b"k%d" % (at % KEYS), b"v%d" % at, NOW_MS + at, ()) for at in range(base, base + 20)]
        bucket.add("t", 0, [encode_batch(records, base_offset=base)])


@pytest.mark.timeout(900)
def test_wheel_contains_everything_that_a_job_needs(installed, file_bucket, tmp_path_factory):
    """A user script on two executors, and the command on this machine. Neither can import the checkout."""
    import pyarrow.parquet as pq

    fill(file_bucket)
    newest = {row.key: (row.offset, row.value) for row in file_bucket.rows}
    script = shutil.copy(Path(__file__).with_name("installed_job.py"), installed.folder)
    told = json.loads(installed.submit("local-cluster[2,1,1024]", script, file_bucket.url).splitlines()[-1])
    assert (told["before"], told["compacted"], told["after"]) == (len(file_bucket.rows), KEYS, KEYS)
    assert told["master"] == "local-cluster[2,1,1024]"
    assert told["driver"] == installed.package
    assert len({each["place"] for each in told["workers"]}) == 2, "both executors must have worked"
    for each in told["workers"]:
        assert Path(each["python"]).parent == installed.python.parent
        assert (each["package"], each["kernels"]) == (installed.package, "compiled")
    assert_sound(file_bucket.store)

    target = tmp_path_factory.mktemp("files")
    words = ("backfill", "t", "--remote", file_bucket.url, "--to", f"file://{target}")
    installed.submit("local[2]", installed.script(), *words)
    rows = pq.read_table(target / "topic=t").to_pylist()
    assert {row["key"]: (row["offset"], row["value"]) for row in rows} == newest


def test_wheel_contains_every_file_of_the_packages(installed):
    """Scripts of the pages, type stubs, kernel sources: files that are not modules are included only if declared."""
    made = {".so", ".c", ".pyc"}  # made by builds
    rooms = [ROOT / room for room in ("local", "remote", "policies", "tiered")]
    found = [each for room in rooms for each in room.rglob("*") if each.is_file() and each.name[0] != "."]
    files = {str(each.relative_to(ROOT)) for each in found}
    with zipfile.ZipFile(installed.wheel) as wheel:
        missing = {each for each in files if Path(each).suffix not in made} - set(wheel.namelist())
    assert "tiered/web/pages/lab.js" in files
    assert {each for each in missing if not each.startswith("tiered/spark/discovery/")} == set(), (
        "files of the discovery package are installed as pyspark_tiered"
    )


def test_command_of_the_wheel_runs_without_the_checkout(installed):
    assert "0.1.0" in installed.tiered("--version")
    assert "compact" in installed.tiered("--help")
