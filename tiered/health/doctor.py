"""Checks of a node: each finding has a next step.

The checks run one after another. An exception in one check becomes its finding, and the next check runs. The checks
write one small file in each log directory and a few objects under the probe's prefix in the store, and remove both.
Without `may_write` they write nothing. They may run while a manager works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from local.errors import LogError
from local.storage import DiskStorage, Storage
from tiered.node.problem_groups import next_step
from tiered.node.work_report import lock_holder

if TYPE_CHECKING:
    from remote.store import ObjectStore
    from tiered.config.config import Config


class State(Enum):
    """Severity of a finding. SKIPPED: the check was impossible or not wanted."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of one check. `next_step` is empty if there is nothing to do."""

    check: str
    state: State
    what: str
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine, as the checks see it.

    `clock_ms` is the wall clock, `files_max` the limit of open files (None: unknown), `lock_holder` the process that
    holds a lock file (None: no visible process).
    """

    storage: Storage
    clock_ms: Callable[[], int]
    files_max: int | None
    lock_holder: Callable[[str], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """Subject of the checks. `store` None: no store is configured.

    `may_write`: the checks may write their temporary files and objects. `is_away` returns whether the store was asked
    and has not answered.
    """

    config: Config
    around: Surroundings
    store: ObjectStore | None = None
    may_write: bool = True
    is_away: Callable[[], bool] = lambda: False


Check = Callable[[Patient], Iterable[Finding]]


def examine(config: Config, *, may_write: bool = True, around: Surroundings | None = None) -> Iterator[Finding]:
    """Yield findings as they are made: the machine, the store, then the content of both.

    Closes everything that it opens.
    """
    from tiered.health.doctor_node import NODE_CHECKS
    from tiered.health.doctor_store import PARTITION_CHECKS, STORE_CHECKS
    from tiered.stores.short_deadline_store import BriefStore

    patient = Patient(config=config, around=around or surroundings(), may_write=may_write)
    yield from run_checks(patient, NODE_CHECKS)
    if config.remote_url is None:
        yield Finding(check="store", state=State.SKIPPED, what="no store is configured: nothing is tiered")
        yield from run_checks(patient, PARTITION_CHECKS)
        return
    try:
        store = BriefStore.of(config)
    except (LogError, ImportError) as error:
        yield failed("store", error)
        return
    assert store is not None, "a store is configured"
    patient = replace(patient, store=store.as_store, is_away=lambda: store.is_away)
    try:
        yield from run_checks(patient, STORE_CHECKS)
        yield from run_checks(patient, PARTITION_CHECKS)
    finally:
        store.close()


def run_checks(patient: Patient, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Yield the findings of each check; an exception becomes a finding."""
    for name, check in checks:
        try:
            yield from check(patient)
        except (LogError, OSError, ImportError) as error:
            yield failed(name, error)


def failed(check: str, error: BaseException) -> Finding:
    """Convert an error to a finding."""
    step = "run the named command, and read the cause"
    if isinstance(error, ImportError):
        step = f"pip install {error.name or 'the package'}"
    elif isinstance(error, LogError):
        step = next_step(error)
    return Finding(check=check, state=State.ERROR, what=" ".join(str(error).split()), next_step=step)


def surroundings() -> Surroundings:
    """Return the access to this machine."""
    return Surroundings(
        storage=DiskStorage(),
        clock_ms=lambda: time.time_ns() // 1_000_000,
        files_max=_files_max(),
        lock_holder=lock_holder,
    )


def _files_max() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
