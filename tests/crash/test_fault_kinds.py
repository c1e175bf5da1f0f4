"""The twenty kinds of fault at the calls of every flow; `fault_campaign.py` runs all cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fault_flows import SCENES, Mode, calls_of, cases, run_case, run_drawn
from fault_kinds import ALL, Kind
from run_profile import FAULT_SEEDS, FAULT_STRIDE, FAULT_STRIDE_ENCRYPTED, deep_only, one_of_each, sampled

from local.errors import AlreadyExists, Fenced, LogError
from remote.cache.chunk_cache import Slice
from remote.fetch import range_reader
from remote.gc import delayed_delete
from remote.keys import manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.writer_roles import WriterState
from remote.segments.encryption import KeyRing, ObjectCipher
from remote.segments.stored_segment import ChunkTable
from remote.upload import segment_upload


def test_all_twenty_kinds_exist_and_every_verb_meets_some() -> None:
    assert {kind.number for kind in Kind} == set(range(1, 21))
    assert all(any(verb in kind.verbs for kind in Kind) for verb in ALL)


def test_every_kind_is_met_by_some_flow() -> None:
    met = {kind for name in SCENES for _, kind in _chosen(name)}
    assert met == set(Kind)
    assert all(len(calls_of(name)) > 1 for name in SCENES), "a flow without store calls proves nothing"


def _chosen(name: str) -> list[tuple[int, Kind]]:
    """Of each kind each n-th call that can meet it, and at least one. The plain profile takes a third of the kinds."""
    all_cases, chosen, shift = cases(name), list[tuple[int, Kind]](), sum(name.encode())
    for kind in one_of_each(3, Kind, list(SCENES).index(name)):
        of_kind = [each for each in all_cases if each[1] is kind]
        if of_kind:
            chosen += of_kind[shift % min(FAULT_STRIDE, len(of_kind)) :: FAULT_STRIDE]
    return sorted(chosen, key=lambda each: each[0])


@pytest.mark.parametrize("name", list(SCENES))
def test_any_kind_of_fault_at_any_call_breaks_no_promise(name: str) -> None:
    for at, kind in _chosen(name):
        # On a busy machine an earlier call may already have met the short deadline of this one kind.
        assert run_case(name, at, kind) or kind is Kind.HANG, "the fault was never met"


@pytest.mark.parametrize("mode", [*deep_only(Mode.ENCRYPTED), Mode.BOTH], ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", list(SCENES))
def test_any_kind_of_fault_breaks_no_promise_of_an_encrypted_bucket(name: str, mode: Mode) -> None:
    for at, kind in sampled(cases(name, mode), FAULT_STRIDE_ENCRYPTED, name, mode.name):
        assert run_case(name, at, kind, mode) or kind is Kind.HANG, "the fault was never met"
    run_drawn(name, 0, mode)


@pytest.mark.parametrize("name", list(SCENES))
def test_several_faults_in_one_flow_break_no_promise(name: str) -> None:
    for seed in range(FAULT_SEEDS):
        run_drawn(name, seed)


# --- planted bugs: each must be detected ------------------------------------------------------------------------------


def _chunks_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    def opened(table: ChunkTable, cipher: None, number: int, stored: Slice, *, is_sound: bool = False) -> Slice:
        return Slice(stored.body, stored.start, table.lengths[number])

    patch.setattr(range_reader, "_opened", opened)
    real = range_reader._pieces
    patch.setattr(range_reader, "_pieces", lambda *given: [(number, body, True) for number, body, _ in real(*given)])


def _uploads_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_upload._Copy, "_verify", lambda self, key, size_bytes: None)


def _a_taken_name_is_a_lost_race(patch: pytest.MonkeyPatch) -> None:
    def create(self: MetadataLog, manifest: Manifest, body: bytes) -> Manifest:
        try:
            self.store.put_if_absent(self.prefix + manifest_key(manifest.sequence), body)
        except AlreadyExists as error:
            self._move(WriterState.FENCED)
            raise Fenced("invalid manifest, its name is taken") from error
        return manifest

    patch.setattr(MetadataLog, "_create", create)


def _unlinked_objects_are_deleted_and_not_struck_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delayed_delete, "remove_pending_deletes", lambda keys: lambda manifest: manifest)


def _data_keys_are_kept_for_the_next_segment(patch: pytest.MonkeyPatch) -> None:
    """The next segment's chunks then do not open with the entry's data key."""
    real, kept = KeyRing.new_object, []

    def new_object(self: KeyRing, key_id: str, stem: str) -> tuple[ObjectCipher, str]:
        kept.append(real(self, key_id, stem))
        return kept[-1][0], kept[max(0, len(kept) - 2)][1]

    patch.setattr(KeyRing, "new_object", new_object)


PLANTED = {
    _chunks_are_not_checked: ("read sequentially", Kind.BIT_FLIP, Mode.RAW),
    _uploads_are_not_verified: ("copy", Kind.LOST_PART, Mode.BOTH),
    _a_taken_name_is_a_lost_race: ("copy", Kind.FALSE_CONFLICT, Mode.RAW),
    _unlinked_objects_are_deleted_and_not_struck_off: ("deletion of the unlinked", Kind.ERROR_AFTER, Mode.ENCRYPTED),
    _data_keys_are_kept_for_the_next_segment: ("copy", Kind.SLOW, Mode.BOTH),
}


@pytest.mark.deep("planted bugs in the handling of faults")
@pytest.mark.parametrize("plant", list(PLANTED), ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    name, kind, mode = PLANTED[plant]
    calls_of(name, mode)  # the initial state is created without the bug
    plant(monkeypatch)
    with pytest.raises((AssertionError, LogError)):
        _run_all(name, kind, mode)


def _run_all(name: str, kind: Kind, mode: Mode) -> None:
    for at, each in cases(name, mode):
        if each is kind:
            run_case(name, at, each, mode)
