"""An effect of a job fails at the moment of another commit, before or after the call.

`test_bucket_compaction_faults` and `test_ingest_faults` test faults and races separately. Here the commit that is lost,
delayed, answered wrongly or killed meets another one. A call that hangs looks to its caller like a late one (`LATE`).
Afterwards the manager continues and the job runs again. Both tiers together and the bucket alone have every
acknowledged value once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import test_ingest_faults
from bucket_truth import assert_sound
from fault_store import Fault, FaultStore, Killed
from run_profile import each_call, one_of_each
from test_bucket_compaction_faults import SETTINGS, Scene
from test_recompaction_faults import HOUR, check, check_bucket_alone

from local.errors import AlreadyExists, LogError, Unavailable
from remote.keys import manifest_key
from remote.manifest import manifest_changes
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.writer_roles import CO_WRITER
from remote.store import Body, ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.jobs import ingest
from tiered.jobs.rewriting import RewritePlan, plan_merge, plan_recode, run_rewrite

Job = Callable[[Scene, ObjectStore], None]  # a job that returns has finished: it asserts so
EFFECTS = ("put", "put_if_absent", "upload", "delete")
FAULTS = [Fault.AFTER, Fault.EXISTS, Fault.LATE_1, Fault.LATE_3, Fault.KILL_BEFORE, Fault.KILL_AFTER]


def compaction(scene: Scene, store: ObjectStore) -> None:
    scene.job(store, job_id="nightly")
    assert [each.job_id for each in scene.manifest().jobs] == ["nightly"]


def merge(scene: Scene, store: ObjectStore) -> None:
    _rewritten(scene, store, plan_merge(store, scene.name(), now_ms=scene.story.clock, target_bytes=4000))


def recode(scene: Scene, store: ObjectStore) -> None:
    _rewritten(scene, store, plan_recode(store, scene.name(), now_ms=scene.story.clock, codec="zstd"))


def _rewritten(scene: Scene, store: ObjectStore, plan: RewritePlan) -> None:
    run_rewrite(store, plan, now_ms=lambda: scene.story.clock, groups_a_manifest=8)
    there = {entry.ulid for entry in scene.manifest().segments}
    assert not there & {entry.ulid for group in plan.groups for entry in group.entries}


JOBS = [compaction, merge, recode]


def effects(job: Job) -> list[int]:
    rehearsal = Scene(**SETTINGS[1])
    calls = FaultStore(rehearsal.store)
    job(rehearsal, calls)
    return [at for at, verb in enumerate(calls.calls) if verb in EFFECTS]


def raced(job: Job, at: int, fault: Fault, *, behind: bool) -> None:
    """One case: call `at` of the job fails, and the manager runs a round right before or after it."""
    scene, rounds = Scene(**SETTINGS[1]), []

    def meanwhile(number: int) -> None:
        if number == at + behind:
            rounds.append(number)
            scene.round("ab", "5")

    store = FaultStore(scene.store, at, fault, before_call=meanwhile)
    with suppress(LogError, Killed):
        job(scene, store)
    if not rounds:  # the process was killed before
        scene.round("ab", "5")
    store.deliver(1 << 60)
    check_bucket_alone(scene.store, scene.story)
    job(scene, scene.store)
    scene.story.settle(scene.manager)
    scene.story.clock += 2 * HOUR
    scene.leave()
    check(scene.disk, scene.store, scene.story)


@pytest.mark.parametrize("fault", one_of_each(2, FAULTS), ids=lambda fault: fault.value)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_a_failing_effect_during_a_managers_commit_loses_and_revives_nothing(job: Job, fault: Fault) -> None:
    found = effects(job)
    assert len(found) > 2, "the job has too few effects"
    for at, behind in each_call([(at, behind) for at in found for behind in (False, True)], job.__name__, fault):
        raced(job, at, fault, behind=behind)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value)
def test_a_failing_ingest_commit_during_the_same_job_has_every_record_once(fault: Fault) -> None:
    rehearsal = FaultStore(MemoryStore())
    test_ingest_faults.run(rehearsal)
    for at in (at for at, verb in enumerate(rehearsal.calls) if verb == "put_if_absent"):
        for behind in (0, 1):
            inner = MemoryStore()

            def meanwhile(number: int, at: int = at + behind, inner: MemoryStore = inner) -> None:
                if number == at:
                    with suppress(LogError):
                        test_ingest_faults.run(inner)

            store = FaultStore(inner, at, fault, before_call=meanwhile)
            with suppress(LogError, Killed):
                test_ingest_faults.run(store)
            store.deliver(1 << 60)
            assert_sound(inner)
            test_ingest_faults.run(inner)
            assert [test_ingest_faults.values(inner, partition) for partition in (0, 1)] == [
                test_ingest_faults.of_job("job")
            ] * 2


# --- planted bugs are detected ----------------------------------------------------------------------------------------


def _believes_any_answer(self: MetadataLog, manifest: Manifest, body: Body) -> Manifest:
    """The answer "exists" is taken for the own object, and a missing answer for success."""
    with suppress(AlreadyExists, Unavailable):
        self.store.put_if_absent(self.prefix + manifest_key(manifest.sequence), body)
    return manifest


@pytest.mark.deep("a planted bug of each job")
@pytest.mark.usefixtures("every_call")
@pytest.mark.parametrize("fault", [Fault.LATE_3, Fault.EXISTS], ids=lambda fault: fault.value)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_a_commit_that_believes_any_answer_is_detected(monkeypatch: pytest.MonkeyPatch, job: Job, fault: Fault) -> None:
    real = MetadataLog._create

    def create(self: MetadataLog, manifest: Manifest, body: Body) -> Manifest:
        return (_believes_any_answer if self._role is CO_WRITER else real)(self, manifest, body)  # type: ignore[arg-type]

    monkeypatch.setattr(MetadataLog, "_create", create)
    with pytest.raises((AssertionError, LogError)):
        test_a_failing_effect_during_a_managers_commit_loses_and_revives_nothing(job, fault)


@pytest.mark.deep("a planted bug of ingests")
@pytest.mark.usefixtures("every_call")
def test_an_ingest_that_does_not_check_its_note_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ingest, manifest_changes):
        monkeypatch.setattr(module, "is_done", lambda manifest, note: False)
    with pytest.raises((AssertionError, LogError)):
        test_a_failing_ingest_commit_during_the_same_job_has_every_record_once(Fault.AFTER)
