"""A local log compared with a plain list over random sequences of steps. `log_machine` has the rules.

The suite runs a fixed number of examples. A longer run with new random sequences:

    TIERED_MODEL_EXAMPLES=2000 pytest tests/property/test_log_model.py"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from log_machine import LogMachine
from run_profile import EXAMPLES

ASKED = os.environ.get("TIERED_MODEL_EXAMPLES")
PROFILE = settings(
    max_examples=int(ASKED) if ASKED else EXAMPLES,
    stateful_step_count=50,
    derandomize=not ASKED,
    deadline=None,
    database=None,
    # Shrinking a sequence takes minutes, so only requested long runs do it.
    phases=(Phase.generate, Phase.shrink) if ASKED else (Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class CompactedLogMachine(LogMachine):
    IS_COMPACTED = True


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("local")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def test_a_log_equals_the_list_of_its_appended_records() -> None:
    run_state_machine_as_test(LogMachine, settings=PROFILE)


def test_a_compacted_log_keeps_the_newest_record_of_every_key() -> None:
    run_state_machine_as_test(CompactedLogMachine, settings=PROFILE)
