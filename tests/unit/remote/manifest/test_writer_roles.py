"""Each role of the commit protocol answers as its row in the table of the module says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.errors import Conflict, Fenced, InvalidRequest, NotFound
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import delete_partition
from remote.manifest.writer_roles import (
    CO_WRITER,
    CONDITIONAL,
    READER,
    RESUMED,
    WRITER,
    Role,
    WriterState,
    takeover_draft,
)
from remote.store.memory_store import MemoryStore

TOPIC_ID = "A" * 22
PREFIX, OF = f"t-{TOPIC_ID}/0/", {"topic": "t", "topic_id": TOPIC_ID, "partition": 0}
ROLES = (READER, WRITER, CONDITIONAL, CO_WRITER, RESUMED)
NEWEST = replace(takeover_draft(None, "t", TOPIC_ID, 0, None), epoch=3, writer_id="w", commit_id="c")
DELETED = replace(NEWEST, deleted_ms=5)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_starts_behind_a_living_topic_of_the_expected_epoch_and_writer(role: Role) -> None:
    role.may_start(NEWEST, PREFIX, epoch=3, writer_id="w")
    role.may_start(NEWEST, PREFIX)
    for expected in ({"epoch": 2}, {"writer_id": "x"}):
        with pytest.raises(Fenced):
            role.may_start(NEWEST, PREFIX, **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_starts_behind_a_deleted_topic_only_to_remove_it(role: Role) -> None:
    with pytest.raises(Conflict):
        role.may_start(DELETED, PREFIX)
    role.may_start(DELETED, PREFIX, removes=True)


def test_a_job_planned_before_a_topic_deletion_learns_of_the_deletion() -> None:
    with pytest.raises(Conflict, match="the topic was deleted"):
        CO_WRITER.may_start(DELETED, PREFIX, epoch=2)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_only_reader_and_writer_start_without_a_manifest(role: Role) -> None:
    if role in (READER, WRITER):
        role.may_start(None, PREFIX)
        return
    with pytest.raises(NotFound):
        role.may_start(None, PREFIX)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_reader_and_co_writer_delete_nothing(role: Role) -> None:
    if role not in (READER, CO_WRITER):
        role.may_delete(PREFIX)
        return
    with pytest.raises(InvalidRequest):
        role.may_delete(PREFIX)


def test_a_newer_epoch_fences_every_role_but_the_reader() -> None:
    assert {role.name: role.on_newer_epoch for role in ROLES if role is not READER} == {
        role.name: WriterState.FENCED for role in (WRITER, CONDITIONAL, CO_WRITER, RESUMED)
    }
    assert READER.on_newer_epoch is WriterState.READER


def test_only_a_co_writer_ends_with_its_topic() -> None:
    for role in (WRITER, CONDITIONAL, RESUMED):
        role.may_commit(DELETED)
    with pytest.raises(Conflict):
        CO_WRITER.may_commit(DELETED)
    CO_WRITER.may_commit(NEWEST)


def _written() -> tuple[MemoryStore, Manifest]:
    store = MemoryStore()
    return store, MetadataLog(store, PREFIX).become_writer("w", 1, **OF)  # type: ignore[arg-type]


def test_a_log_takes_one_role_only() -> None:
    store, manifest = _written()
    log = MetadataLog(store, PREFIX)
    assert log.join(epoch=1) == manifest
    for take in (
        log.join,
        lambda: log.resume(epoch=1, writer_id="w"),
        lambda: log.become_writer("x", 2, **OF),  # type: ignore[arg-type]
        lambda: log.take_over_if("x", 2, check_newest=lambda newest: None),
    ):
        with pytest.raises(InvalidRequest, match="not open for reading"):
            take()
    assert log.state is WriterState.WRITER


def test_a_resumed_writer_commits_in_its_epoch_and_may_delete() -> None:
    store, _ = _written()
    for expected in ({"epoch": 2, "writer_id": "w"}, {"epoch": 1, "writer_id": "x"}):
        with pytest.raises(Fenced):
            MetadataLog(store, PREFIX).resume(**expected)  # type: ignore[arg-type]
    log = MetadataLog(store, PREFIX)
    log.resume(epoch=1, writer_id="w")
    marked = log.commit(delete_partition(now_ms=9), 9)
    assert (marked.epoch, marked.sequence) == (1, 2)
    assert log.check_still_writer() == marked


def test_a_conditional_takeover_raises_the_epoch_or_has_no_effect() -> None:
    store, manifest = _written()

    def refuse(newest: Manifest) -> None:
        raise Conflict("it works", epoch=newest.epoch)

    with pytest.raises(Conflict, match="it works"):
        MetadataLog(store, PREFIX).take_over_if("x", 2, check_newest=refuse)
    assert MetadataLog(store, PREFIX).load(exact=True) == manifest
    assert MetadataLog(store, PREFIX).take_over_if("x", 2, check_newest=lambda newest: None).epoch == 2
