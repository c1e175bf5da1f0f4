"""Terminal sessions equal their recordings, and JSON of the same commands matches its schema.

The deep profile compares both widths, the plain profile one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec
import pytest
from json_schemas import SCHEMAS
from recorded_sessions import FOLDER, SESSIONS, WIDTHS, WITH_SCHEMA, Session, file_of, play
from run_profile import one_of_each

RERUN = "look at what changed, then: python tests/unit/support/recorded_sessions.py --write"


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A separate process, like for real commands, so that state of other tests in this process is not recorded."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_terminal_session_equals_its_recording(session: Session, process: ProcessPoolExecutor) -> None:
    for width in one_of_each(len(WIDTHS), WIDTHS, SESSIONS.index(session)):
        seen, printed = process.submit(play, session, width).result()
        assert seen == file_of(session, width).read_text(), RERUN
        assert "Traceback" not in seen
        assert "internal error" not in seen
        for command, text in printed.items():
            msgspec.json.decode(text, type=SCHEMAS[WITH_SCHEMA[command]])


def test_every_recording_has_a_session_and_every_schema_a_command() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(file_of(each, width) for each in SESSIONS for width in WIDTHS)
    commands = {line for each in SESSIONS for line in each.commands}
    assert set(WITH_SCHEMA) <= commands
    assert set(WITH_SCHEMA.values()) <= set(SCHEMAS)
    assert len(WITH_SCHEMA) >= 7
    assert len(commands) > 55


def test_tables_fit_the_terminal_width() -> None:
    """Checks rows and headings of tables. The terminal wraps other lines on stderr."""
    for session in SESSIONS:
        for width in WIDTHS:
            lines = file_of(session, width).read_text().splitlines()
            wide = [line for line in lines if line[:1].isupper() and "  " in line and len(line) > width]
            assert not wide, wide
