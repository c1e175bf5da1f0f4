"""What every test run shares: under ``TIERED_NO_SKIPS=1`` a skipped test fails the run and its reason is listed.

A skip is a courtesy to a machine without Java or a server; where the whole set-up is promised (`.ci/run`) it would hide
a missing half of the evidence. An expected failure is not a skip.
"""

from __future__ import annotations

import logging
import os
import sys

import pytest

NO_SKIPS = os.environ.get("TIERED_NO_SKIPS") == "1"


def pytest_collection_modifyitems(items):
    """Tests that start a Java go to one worker for each kind: one session, one broker serves them all."""
    for item in items:
        for name in ("spark", "kafka"):
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(autouse=True)
def log_levels_as_they_were():
    """A command run inside a test sets them for the process, as its user asked; the next test knows nothing of it."""
    loggers = [logging.getLogger(name) for name in ("", "local", "remote", "tiered", "tiered.manager")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def buckets_stay_sound(request):
    """Every bucket that a test's managers wrote to is decoded whole in the end, to the last record."""
    yield
    worlds = sys.modules.get("manager_world")
    if worlds is None or not worlds.World.made:
        return
    made, worlds.World.made[:] = list(worlds.World.made), []
    if request.node.get_closest_marker("damages_bucket") is None:
        from bucket_truth import assert_sound

        for world in made:
            assert_sound(world.store)


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
    """The skipped tests and modules of this run; under xdist the controller has them all, the workers none."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.stats.get("skipped", [])


def _reason(report):
    longrepr = report.longrepr
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
