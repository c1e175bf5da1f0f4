"""The state machine of a partition's remote tier, walked state by state and event by event, and its page in the docs.

``docs/explanation/partition-state.md`` is generated from the tables. After a change of them:

    python tests/unit/tiered/partition/test_tier_state.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tier_transitions import DERIVED, reachable

from local.errors import Corrupt, Diverged, Fenced, LogError, NotFound, RemoteLost, Unavailable
from local.log import Log
from local.names import TopicPartition
from local.segment.segment import Segment
from policies.rules import PartitionRules
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.writer_roles import WriterState
from remote.segment_entry import SegmentEntry
from tiered.node.topic_registry import Topic
from tiered.partition.partition import Partition
from tiered.partition.tier_state import (
    PERMISSIONS,
    STOPPED,
    TRANSITIONS,
    UPLOAD_TRANSITIONS,
    WRITING,
    Permission,
    TierAction,
    TierEvent,
    TierMachine,
    TierState,
    Uploads,
    UploadState,
    next_state,
)

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "partition-state.md"
STORED = frozenset(TierState) - {TierState.IN_DOUBT, TierState.DISABLED}
ERRORS: dict[TierEvent, LogError] = {
    TierEvent.FENCED: Fenced("another writer"),
    TierEvent.DIVERGED: Diverged("another history"),
    TierEvent.LOST: RemoteLost("another bucket"),
    TierEvent.REFUSED: Corrupt("a damaged manifest"),
}
AGREED_BEFORE = "this process was the writer before: until then the tiers agreed"
CONDITIONS: dict[tuple[TierState, TierAction], str] = {
    (TierState.UNREACHED, TierAction.APPEND): (
        "the log has records and does not end before the newest manifest: else offsets could collide"
    ),
    (TierState.IN_DOUBT, TierAction.CLEAN): "no upload and no view may be part of the commit in doubt",
    **{(state, TierAction.READ_REMOTE): AGREED_BEFORE for state in STOPPED},
}
SENDS: dict[TierEvent, Callable[[TierMachine], None]] = {
    TierEvent.TIERED: lambda machine: machine.set_tiered(True),
    TierEvent.UNTIERED: lambda machine: machine.set_tiered(False),
    TierEvent.AGREED: TierMachine.agree,
    TierEvent.ACQUIRED: TierMachine.acquire,
    TierEvent.FENCED: lambda machine: machine.stop(ERRORS[TierEvent.FENCED]),
    TierEvent.DIVERGED: lambda machine: machine.stop(ERRORS[TierEvent.DIVERGED]),
    TierEvent.LOST: lambda machine: machine.stop(ERRORS[TierEvent.LOST]),
    TierEvent.REFUSED: lambda machine: machine.stop(ERRORS[TierEvent.REFUSED]),
    TierEvent.DELETED: TierMachine.delete,
}


def _machine_in(state: TierState) -> TierMachine:
    """A machine brought to a stored state by events alone."""
    machine = TierMachine(is_tiered=state is not TierState.LOCAL_ONLY)
    match state:
        case TierState.WRITER:
            machine.acquire()
        case TierState.DELETED:
            machine.delete()
        case _ if state in STOPPED:
            machine.stop(ERRORS[TierEvent[state.name]])
    assert machine.state is state
    return machine


def test_every_event_is_sent_to_the_machine() -> None:
    assert set(SENDS) == set(TierEvent)


@pytest.mark.parametrize("event", SENDS)
@pytest.mark.parametrize("state", sorted(STORED, key=lambda each: each.name))
def test_machine_follows_the_table_in_every_state_at_every_event(state: TierState, event: TierEvent) -> None:
    machine = _machine_in(state)
    if event is TierEvent.ACQUIRED and not machine.is_tiered:
        with pytest.raises(AssertionError):
            SENDS[event](machine)
        return
    if (state, event) not in TRANSITIONS:
        with pytest.raises(AssertionError, match=f"state={state.name} event={event.name}"):
            SENDS[event](machine)
        assert machine.state is state, "a refused event changed the state"
        return
    SENDS[event](machine)
    assert machine.state is TRANSITIONS[state, event]
    assert (machine.error is not None) is (machine.state in STOPPED), "a stopped state has an error, no other has one"


def test_a_second_error_replaces_the_first_and_settings_keep_it() -> None:
    machine = _machine_in(TierState.DIVERGED)
    machine.stop(ERRORS[TierEvent.FENCED])
    machine.set_tiered(True)
    assert (machine.state, machine.error) == (TierState.FENCED, ERRORS[TierEvent.FENCED])
    machine.acquire()
    assert (machine.state, machine.error, machine.has_agreed) == (TierState.WRITER, None, True)


def test_no_event_leaves_the_deleted_state() -> None:
    after = {next_state(TierState.DELETED, event) for event in SENDS}
    assert after == {TierState.DELETED}


def test_every_state_is_reachable_from_the_two_states_of_an_open() -> None:
    assert reachable({TierState.LOCAL_ONLY, TierState.UNREACHED}) == set(TierState)


def test_a_stopped_state_becomes_a_writer_only_by_a_takeover() -> None:
    into = {
        (state, event) for (state, event), after in TRANSITIONS.items() if after in WRITING and state not in WRITING
    }
    assert {event for _, event in into} == {TierEvent.ACQUIRED}


def test_only_a_writer_uploads_and_deletes_remote_objects() -> None:
    for action in (TierAction.UPLOAD, TierAction.DELETE_REMOTE):
        allowed = {state for state in TierState if PERMISSIONS[state][action] is not Permission.FORBIDDEN}
        assert allowed <= WRITING, action


def test_a_stopped_or_deleted_state_allows_no_change_of_either_tier() -> None:
    for state in STOPPED | {TierState.DELETED}:
        allowed = {each for each, is_ok in PERMISSIONS[state].items() if is_ok is not Permission.FORBIDDEN}
        assert allowed <= {TierAction.READ_REMOTE}, state


def test_every_checked_permission_names_its_condition() -> None:
    checked = {
        (state, action)
        for state, row in PERMISSIONS.items()
        for action, permission in row.items()
        if permission is Permission.CHECKED
    }
    assert checked == set(CONDITIONS)
    assert all(set(row) == set(TierAction) for row in PERMISSIONS.values())
    assert set(PERMISSIONS) == set(TierState)


@pytest.mark.parametrize("state", sorted(STORED, key=lambda each: each.name))
def test_facts_of_the_commit_protocol_change_what_is_seen_of_a_writer_alone(state: TierState) -> None:
    for is_fenced in (False, True):
        for is_in_doubt in (False, True):
            for is_disabled in (False, True):
                machine = TierMachine(is_tiered=True)
                machine.state = state
                seen = machine.seen(is_fenced=is_fenced, has_commit_in_doubt=is_in_doubt, is_disabled=is_disabled)
                if state is not TierState.WRITER:
                    assert seen is state
                elif is_fenced:
                    assert seen is TierState.FENCED
                else:
                    expected = TierState.DISABLED if is_disabled else TierState.WRITER
                    assert seen is (TierState.IN_DOUBT if is_in_doubt else expected)


# --- what a partition asks of its state ------------------------------------------------------------------------------


def _partition(machine: TierMachine, *, size_bytes: int = 1, next_offset: int = 10, **facts: object) -> Partition:
    """A partition over stand-ins: only its state and the facts that conditions name are real."""
    manifest = SimpleNamespace(tier_disabled=False, has_entries=True, views=(), allocated_end_offset=5)
    manifest.__dict__.update({name: value for name, value in facts.items() if name in manifest.__dict__})
    metadata = SimpleNamespace(
        cached=manifest,
        has_commit_in_doubt=facts.get("has_commit_in_doubt", False),
        state=facts.get("log_state", WriterState.WRITER),
        check_not_fenced=lambda: None,
    )
    log = SimpleNamespace(next_offset=next_offset, size_bytes=size_bytes, is_read_only=False)
    name = TopicPartition("t", 0)
    topic = Topic(name="t", topic_id="id", partition_count=1, properties={})
    return Partition(
        name=name,
        topic=topic,
        rules=PartitionRules(),
        log=cast(Log, log),
        tier=machine,
        metadata=cast(MetadataLog, metadata) if machine.is_tiered else None,
    )


def _partitions() -> Iterator[tuple[TierState, Partition]]:
    for state in STORED:
        yield state, _partition(_machine_in(state))
    yield TierState.IN_DOUBT, _partition(_machine_in(TierState.WRITER), has_commit_in_doubt=True)
    yield TierState.DISABLED, _partition(_machine_in(TierState.WRITER), tier_disabled=True)
    yield TierState.FENCED, _partition(_machine_in(TierState.WRITER), log_state=WriterState.FENCED)


def test_partition_allows_what_the_table_allows_in_every_state() -> None:
    seen = set()
    for state, partition in _partitions():
        assert partition.tier_state is state
        assert partition.is_writer is (state in WRITING)
        assert partition.is_deleted is (state is TierState.DELETED)
        seen.add(state)
        for action in TierAction:
            match PERMISSIONS[state][action]:
                case Permission.ALLOWED:
                    assert partition.allows(action), (state, action)
                case Permission.FORBIDDEN:
                    assert not partition.allows(action), (state, action)
                case Permission.CHECKED:
                    assert isinstance(partition.allows(action), bool), "each condition is evaluated"
    assert seen == set(TierState)


def test_unreached_partition_takes_appends_only_where_offsets_cannot_collide() -> None:
    assert _partition(_machine_in(TierState.UNREACHED)).allows(TierAction.APPEND)
    for log in ({"size_bytes": 0}, {"next_offset": 4}):
        partition = _partition(_machine_in(TierState.UNREACHED), **log)  # type: ignore[arg-type]
        assert not partition.allows(TierAction.APPEND)
        with pytest.raises(Unavailable):
            partition.check_appendable()
    with pytest.raises(NotFound):
        _partition(_machine_in(TierState.DELETED)).check_appendable()
    with pytest.raises(Diverged):
        _partition(_machine_in(TierState.DIVERGED)).check_appendable()


def test_partition_in_doubt_is_cleaned_only_without_an_upload_or_view_in_the_commit() -> None:
    def in_doubt(**facts: object) -> Partition:
        return _partition(_machine_in(TierState.WRITER), has_commit_in_doubt=True, **facts)  # type: ignore[arg-type]

    assert in_doubt().allows(TierAction.CLEAN)
    assert not in_doubt(views=("v",)).allows(TierAction.CLEAN)
    partition, segment = in_doubt(), _segment()
    partition.uploads.add(segment, 1, _entry("a"))
    assert partition.allows(TierAction.CLEAN), "no commit of the upload was sent"
    with pytest.raises(Unavailable), partition.uploads.committing([segment], 1):
        raise Unavailable("no answer")
    assert not partition.allows(TierAction.CLEAN)


def test_stopped_partition_is_read_only_if_its_tiers_agreed_before() -> None:
    machine = _machine_in(TierState.FENCED)
    assert not _partition(machine).allows(TierAction.READ_REMOTE)
    machine.acquire()
    machine.stop(ERRORS[TierEvent.FENCED])
    assert _partition(machine).allows(TierAction.READ_REMOTE)


# --- the ledger of uploads -------------------------------------------------------------------------------------------


def _segment(*, is_retired: bool = False) -> Segment:
    return cast(Segment, _Segment(is_retired))


class _Segment:
    def __init__(self, is_retired: bool) -> None:
        self.is_retired = is_retired


def _entry(ulid: str) -> SegmentEntry:
    return cast(SegmentEntry, SimpleNamespace(ulid=ulid))


def test_upload_moves_only_as_its_table_allows() -> None:
    uploads, segment = Uploads(), _segment()
    uploads.add(segment, 1, _entry("a"))
    upload = uploads.items()[segment]
    for state in UploadState:
        if state in UPLOAD_TRANSITIONS[UploadState.UPLOADED]:
            assert upload.moved(state).state is state
        else:
            with pytest.raises(AssertionError):
                upload.moved(state)
    assert not UPLOAD_TRANSITIONS[UploadState.COMMITTED], "a committed upload is the manifest's"


def test_upload_leaves_the_ledger_with_its_commit() -> None:
    uploads, segment, other = Uploads(), _segment(), _segment()
    uploads.add(segment, 1, _entry("a"))
    uploads.add(other, 1, _entry("b"))
    with uploads.committing([segment], 1) as retired:
        assert retired == []
        assert uploads.items()[segment].state is UploadState.COMMITTING
        assert uploads.may_be_committed
    assert set(uploads.items()) == {other}
    assert not uploads.may_be_committed


def test_upload_without_an_answer_stays_in_doubt_until_a_later_commit_returns() -> None:
    uploads, segment = Uploads(), _segment()
    uploads.add(segment, 1, _entry("a"))
    with pytest.raises(Unavailable), uploads.committing([segment], 1):
        raise Unavailable("no answer")
    assert uploads.items()[segment].state is UploadState.IN_DOUBT
    assert uploads.find(segment, 1) is not None
    assert uploads.find(segment, 2) is None, "an upload of an earlier epoch is an orphan"
    with uploads.committing([segment], 1):
        pass
    assert not uploads.items()


def test_commit_unlinks_uploads_of_retired_segments_of_its_own_epoch() -> None:
    uploads, segment, retired, orphan = Uploads(), _segment(), _segment(is_retired=True), _segment(is_retired=True)
    for each, epoch, ulid in ((segment, 2, "a"), (retired, 2, "b"), (orphan, 1, "c")):
        uploads.add(each, epoch, _entry(ulid))
    with uploads.committing([], 2) as unlinked:
        assert [each.ulid for each in unlinked] == ["b"]
    assert set(uploads.items()) == {segment}


def test_removed_uploads_in_doubt_may_still_be_committed() -> None:
    uploads, segment, other = Uploads(), _segment(), _segment()
    uploads.add(segment, 1, _entry("a"))
    uploads.add(other, 1, _entry("b"))
    with pytest.raises(Unavailable), uploads.committing([segment], 1):
        raise Unavailable("no answer")
    uploads.remove_doubtful()
    assert set(uploads.items()) == {other}
    assert uploads.may_be_committed


# --- the page --------------------------------------------------------------------------------------------------------


def _page() -> str:
    sent = {event.value: {state: after for (state, on), after in TRANSITIONS.items() if on is event} for event in SENDS}
    rows = {**{event.value: sent[event.value] for event in (TierEvent.AGREED, TierEvent.ACQUIRED)}, **DERIVED, **sent}
    events = [name for name in rows if name not in (TierEvent.TIERED.value, TierEvent.UNTIERED.value)]
    lines = [
        "# The state of a partition",
        "",
        "Generated from `tiered/partition/tier_state.py` by `python tests/unit/tiered/partition/test_tier_state.py`;",
        "a test fails when the two differ.",
        "",
        "One component of each partition, `TierMachine`, owns the state of the remote tier. Every other part of the",
        "program sends it events and asks it what is allowed. A transition that the table lacks fails an assertion.",
        "",
        "## States",
        "",
        "| state | meaning |",
        "|---|---|",
        *(f"| {state.name} | {MEANINGS[state]} |" for state in TierState),
        "",
        "## Transitions",
        "",
        "An empty cell: the event cannot happen in that state. IN_DOUBT and DISABLED are derived at each read:",
        "the commit protocol owns these facts. Settings move a partition between LOCAL_ONLY and UNREACHED only.",
        "",
        "| event | " + " | ".join(state.name for state in TierState) + " |",
        "|---|" + "---|" * len(TierState),
        *(
            f"| {event} | "
            + " | ".join(rows[event][state].name if state in rows[event] else "" for state in TierState)
            + " |"
            for event in events
        ),
        "",
        "```text",
        "LOCAL_ONLY --settings--> UNREACHED --takeover--> WRITER <--commit sent, resolved--> IN_DOUBT",
        "                             ^                     |  ^---tier disabled, enabled---> DISABLED",
        "                             |                     |",
        "                     read-only open           an error that forbids all changes",
        "                             |                     v",
        "                             +--- FENCED, DIVERGED, LOST, REFUSED --takeover--> WRITER",
        "every state --the topic is deleted--> DELETED",
        "```",
        "",
        "## What each state allows",
        "",
        "| state | " + " | ".join(action.value for action in TierAction) + " |",
        "|---|" + "---|" * len(TierAction),
    ]
    notes = {text: number for number, text in enumerate(dict.fromkeys(CONDITIONS.values()), start=1)}
    for state in TierState:
        cells = [
            permission.value + (f" ({notes[CONDITIONS[state, action]]})" if permission is Permission.CHECKED else "")
            for action, permission in PERMISSIONS[state].items()
        ]
        lines.append(f"| {state.name} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {text}" for text, number in notes.items())]
    lines += [
        "",
        "The state of a partition only forbids. What is due is decided by `policies`, and each effect is checked once",
        "more against the newest manifest (`tiered/maintenance/apply.py`).",
        "",
        "## Uploads",
        "",
        "`Uploads` (`tiered/partition/tier_state.py`) is the ledger of copied segments that no known manifest names.",
        "",
        "| state | next |",
        "|---|---|",
        *(
            f"| {state.name} | {', '.join(sorted(each.name for each in after)) or 'none: the manifest names it'} |"
            for state, after in UPLOAD_TRANSITIONS.items()
        ),
        "",
    ]
    return "\n".join(lines)


MEANINGS = {
    TierState.LOCAL_ONLY: "the topic is not tiered",
    TierState.UNREACHED: "tiered; this process is not the writer (yet), or has the directory open read-only",
    TierState.WRITER: "this process is the writer, and the two tiers agree",
    TierState.IN_DOUBT: "a writer; a commit was sent and its outcome is unknown",
    TierState.DISABLED: "a writer; the tier was disabled for good, and its entries are being unlinked",
    TierState.FENCED: "another writer took over",
    TierState.DIVERGED: "the tiers hold different records for the same offsets ([diverged logs](diverged-logs.md))",
    TierState.LOST: "the bucket lacks records that this disk has dropped",
    TierState.REFUSED: "any other lasting error of the takeover: a missing key, a damaged manifest, a deleted topic",
    TierState.DELETED: "the topic was deleted",
}


def test_page_of_the_docs_has_the_tables_of_the_code() -> None:
    assert PAGE.read_text() == _page(), "run this file as a program to write the page again"


if __name__ == "__main__":
    PAGE.write_text(_page())
