"""Shared set-up of every test run. With ``TIERED_NO_SKIPS=1`` a skipped test fails the run and its reason is listed.

A machine without Java or a server may skip tests. Where the whole set-up is required (`.ci/run`), a skip would hide
missing evidence. An expected failure is not a skip. ``TIERED_MAY_SKIP`` lists markers, comma separated, whose tests may
be skipped nevertheless: `.ci/run` sets it where a machine cannot run a server.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import class_archives
import leftover_processes
import printed_json
import pytest
import sent_versions
from fetched import Missing
from hypothesis import HealthCheck, settings
from local_servers import KINDS, RunningServer

from local.lock_ranks import check_ranks

# The order of the tests and the examples of Hypothesis are the same on every run. `--hypothesis-profile=random` draws
# both anew. No example has a deadline: on a busy machine an example takes longer than Hypothesis' limit of 200 ms.
_BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
RANDOM, SEED = "random", 1
settings.register_profile(RANDOM, derandomize=False, max_examples=500, print_blob=True, **_BUSY)
# Under xdist these run first, the longest first, so that all workers end together; the rest follows.
LONG_GROUPS = (
    "spark",
    "spark processes",
    "kafka",
    "hdfs",
    "kafkas cleaner",
    "localstack",
    "versitygw",
    "browser",
    "planted",
)
LONG_FOLDERS = ("integration", "crash", "property", "contract")
# These tests assert the order of locks. In others, one thread may play another process in the middle of a call.
CHECKS_LOCKS = (
    *(f"unit/tiered/{folder}" for folder in ("maintenance", "manager", "partition", "topics")),
    *(f"crash/test_{name}" for name in ("racing_managers", "job_races", "tasks_with_concurrent_work")),
    "unit/local/test_lock_ranks",
)
MEMORY_FILES, MEMORY_FILES_BYTES_MIN = "/dev/shm", 8 << 30
NO_SKIPS = os.environ.get("TIERED_NO_SKIPS") == "1"
MAY_SKIP = frozenset(filter(None, os.environ.get("TIERED_MAY_SKIP", "").split(",")))


def pytest_addoption(parser):
    parser.addoption("--deep", action="store_true", help="run the deep profile: more cases of sweeps, races and draws")


@pytest.hookimpl(tryfirst=True)  # before pytest-randomly draws a seed
def pytest_configure(config):
    """Choose the profile, fix the order of the tests, and end every process of the run with the run."""
    is_first = not hasattr(config, "workerinput")
    if config.getoption("--deep", default=False):
        os.environ["TIERED_TEST_PROFILE"] = "deep"
    from run_profile import EXAMPLES  # after the variable is set: the module reads it once

    settings.register_profile("fixed", derandomize=True, database=None, max_examples=EXAMPLES, **_BUSY)
    settings.load_profile("fixed")
    is_random = config.getoption("--hypothesis-profile", default=None) == RANDOM
    if is_first and not is_random and config.getoption("randomly_seed", default=None) == "default":
        config.option.randomly_seed = SEED
    # Workers of the run and commands of the tests share compiled modules also where the environment forbids to write
    # them: compiling all tests takes a worker 15 seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if is_first:
        _use_memory_for_files()
        for name, value in class_archives.spark_environment().items():
            os.environ.setdefault(name, value)
        if leftover_processes.MARK not in os.environ:
            leftover_processes.end_with_run(uuid4().hex)
        _make_class_archives(config)
    else:
        _begin_with_own_files(config)


def _use_memory_for_files():
    """Place the temporary files of tests in memory, if the machine has room: an fsync there costs no time."""
    if not os.path.isdir(MEMORY_FILES):
        return
    found = os.statvfs(MEMORY_FILES)
    if found.f_bavail * found.f_frsize >= MEMORY_FILES_BYTES_MIN and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY_FILES)


def _is_whole_run(config):
    return [os.path.abspath(os.path.join(config.rootpath, each)) for each in config.args] == [os.path.dirname(__file__)]


def _make_class_archives(config):
    """Make missing archives of classes beside the first tests of a run that has tests with Spark and Kafka."""
    if _is_whole_run(config) and not config.option.markexpr and not config.option.collectonly:
        command = [sys.executable, class_archives.__file__]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _begin_with_own_files(config):
    """Let each worker of a whole run collect from another file on.

    The first import of a test module compiles it and caches the result. Workers in one order would compile each module
    at the same time. The order of the tests does not depend on the order of their collection.
    """
    if not _is_whole_run(config):
        return
    files = sorted(str(path) for path in Path(__file__).parent.rglob("test_*.py"))
    start = len(files) * int(config.workerinput["workerid"].removeprefix("gw")) // config.workerinput["workercount"]
    config.args[:] = files[start:] + files[:start]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return two workers a CPU, since many tests wait for a disk, a server or a JVM; and 4 GiB of memory for each.

    Without servers few tests wait, and each worker costs the collection of all tests.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = len(os.sched_getaffinity(0))
    return max(1, min(cpus + 1 if "not server" in config.option.markexpr else 2 * cpus, memory_bytes >> 32))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist", default="no") == "loadgroup":
        from work_units import Scheduler

        config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
        return Scheduler(config, log)
    return None


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_collection_modifyitems(config, items):
    _leave_deep_tests_out(config, items)
    _mark_groups(items)  # before pytest-xdist reads the groups
    yield
    if config.getoption("loadgroup", default=False):
        items.sort(key=_rank)  # after pytest-randomly shuffled the tests


def _leave_deep_tests_out(config, items):
    """Deselect the tests with the marker `deep` in the plain profile, unless the command line names tests or it."""
    from run_profile import IS_DEEP

    if IS_DEEP or "deep" in config.option.markexpr or any("::" in each for each in config.args):
        return
    deep = [item for item in items if item.get_closest_marker("deep")]
    if deep:
        items[:] = [item for item in items if not item.get_closest_marker("deep")]
        config.hook.pytest_deselected(items=deep)


def _rank(item):
    group = next((mark.args[0] for mark in item.iter_markers("xdist_group") if mark.args), None)
    if group in LONG_GROUPS:
        return LONG_GROUPS.index(group)
    folder = item.path.relative_to(os.path.dirname(__file__)).parts[0]
    order = LONG_FOLDERS.index(folder) if folder in LONG_FOLDERS else len(LONG_FOLDERS)
    return len(LONG_GROUPS) + order


def _mark_groups(items):
    """Assign tests that start something costly to one worker for each kind, which shares one session, broker or
    browser."""
    for item in items:
        for name in ("spark", "kafka", "localstack", "versitygw", "hdfs", "browser"):
            if item.get_closest_marker(name):
                has_own_jvm = name == "spark" and "spark" not in item.fixturenames
                item.add_marker(pytest.mark.xdist_group("spark processes" if has_own_jvm else name))


def pytest_collection(session):
    gc.disable()  # until the modules and tests are frozen: hardly anything that a collection makes is garbage


def pytest_collection_finish(session):
    """Check that requested groups are in effect. Without them every worker would start every server, which takes
    minutes."""
    if session.config.getoption("loadgroup", False):
        alone = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in each for each in alone), "pytest-xdist does not name the groups of tests"
    gc.enable()
    gc.freeze()  # the modules and tests of a worker live to its end: collections skip them


@pytest.hookimpl(tryfirst=True)  # a hook costs each test less than a fixture
def pytest_runtest_setup(item):
    """Reset the log levels, and assert the order of the locks that are made in the tests of CHECKS_LOCKS."""
    _reset_log_levels()
    check_ranks(item.path.relative_to(os.path.dirname(__file__)).as_posix().startswith(CHECKS_LOCKS))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    made = yield
    if fixturedef.scope != "function":
        _reset_log_levels()
    return made


def _reset_log_levels():
    """A command sets the log levels of the whole process."""
    logging.getLogger().setLevel(logging.WARNING)
    for name in ("local", "remote", "tiered", "tiered.partition.partition_table"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.hookimpl(trylast=True)  # after the fixtures of the test have ended
def pytest_runtest_teardown(item):
    """Check the JSON that commands printed in this process, and the buckets of the test's managers.

    Output in a fixture counts for the test that creates it. Every object of a bucket is decoded to the last record.
    """
    worlds, made = sys.modules.get("manager_world"), []
    if worlds is not None:
        made, worlds.World.made[:] = list(worlds.World.made), []
    assert printed_json.take_wrong() == []
    if made and item.get_closest_marker("damages_bucket") is None:
        from bucket_truth import assert_sound

        for world in made:
            assert_sound(world.store)


@pytest.fixture(autouse=True, scope="module")
def commands_keep_their_clock():
    """Check that no command module keeps a patched clock, because it is imported at its first call."""
    yield
    session = sys.modules.get("tiered.cli.session")
    clocks = {
        name: vars(module).get("now_ms") for name, module in list(sys.modules.items()) if name[:11] == "tiered.cli."
    }
    strange = [name for name, clock in clocks.items() if clock is not None and clock is not session.now_ms]
    assert not strange, f"patch time.time_ns: what these go by from now on is the clock of a test: {strange}"


printed_json.watch()
if sent_versions.VARIABLE in os.environ:
    sent_versions.watch(Path(os.environ[sent_versions.VARIABLE]))


@pytest.fixture
def every_call(monkeypatch):
    """A test with a planted bug breaks every call in both profiles: it ends at the first call that detects it."""
    monkeypatch.setattr("run_profile.CALL_STRIDE", 1)


@pytest.fixture(scope="session")
def localstack_server(tmp_path_factory):
    yield from _running("localstack", tmp_path_factory)


@pytest.fixture(scope="session")
def versitygw_server(tmp_path_factory):
    yield from _running("versitygw", tmp_path_factory)


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory):
    yield from _running("hdfs", tmp_path_factory)


def _running(name, tmp_path_factory):
    """Tests that use a server have the marker of its name, which assigns them to one worker."""
    try:
        KINDS[name].fetch()
    except Missing as missing:
        pytest.skip(str(missing))
    with RunningServer(KINDS[name], tmp_path_factory.mktemp(name)) as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if (
        NO_SKIPS
        and _skips(session.config)
        and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    skips = _skips(config) if NO_SKIPS else []
    if skips:
        terminalreporter.section("skipped, and TIERED_NO_SKIPS=1 allows none", red=True)
        for report in skips:
            terminalreporter.line(f"{report.nodeid}: {_reason(report)}")


def _skips(config):
    """Tests and modules skipped without permission. Under xdist only the controller has them."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = [] if reporter is None else reporter.stats.get("skipped", [])
    return [report for report in skipped if MAY_SKIP.isdisjoint(getattr(report, "keywords", ()))]


def _reason(report):
    longrepr = report.longrepr
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
