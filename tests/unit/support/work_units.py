"""How pytest-xdist shares tests among the workers of a run."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling

SPLIT_FOLDERS = ("tests/crash/", "tests/integration/")  # of these any worker takes any test: many take seconds


class Scheduler(LoadGroupScheduling):
    """One worker runs all tests of an xdist group, and all tests of a module outside `SPLIT_FOLDERS`.

    So a fixture of a module is set up once in a run.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        if scope != nodeid or nodeid.startswith(SPLIT_FOLDERS):
            return scope
        return nodeid.partition("::")[0]
