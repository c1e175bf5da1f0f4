"""Cost advice saved as a plan of steps, checked and applied.

The state of the manager alone shows the state of each step:

| step | due | done | anything else |
|---|---|---|---|
| setting | it has the value from before | it has the advised value | changed |
| segment | its ULID is in the manifest | the same offsets are in the advised class | changed |

If anything has changed, no step is done. No progress is written to disk:

| a crash after | leaves | the same file then |
|---|---|---|
| some settings | the altered settings | continues with the others |
| some uploads | objects that no manifest names | moves these segments again |
| some manifests | the moved segments | continues with the others |
| the last step | a finished job | does nothing |
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from local.errors import Conflict, InvalidRequest
from policies.cost.cost_advice import CostAdvice, Move
from policies.cost.prices import STANDARD, PriceTable
from policies.cost.storage_cost import request_cost
from policies.decisions import Plan
from remote.manifest.catalog import RemotePartitionName
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.price_file import configured_prices
from tiered.config.properties import canonical, parse
from tiered.cost.cost_advising import AdvisedCosts
from tiered.cost.topic_cost import log_entries
from tiered.jobs.rewriting import GROUPS_A_MANIFEST, EntryFilter, cost_of, plan_recode, run_rewrite
from tiered.manager.manager import LogManager
from tiered.plans.planning import basis_changes, plan_basis
from tiered.plans.saved_plan import AlterStep, MovedSegment, RecodeStep, SavedPlan, Step
from tiered.stores.object_encoding import EncodingChoice

CHANGED = "cannot apply the saved advice, the state has changed since: run 'tiered cost advise --out' again"
NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """A step of `parts` parts (segments of a move, 1 for a setting), of which `due` are not done."""

    step: Step
    parts: int
    due: int

    @property
    def is_done(self) -> bool:
        return self.due == 0


def save_advice(manager: LogManager, advised: AdvisedCosts, now_ms: int, *, has_classes: bool = True) -> SavedPlan:
    """Convert advice to steps: settings first (of several values the largest saving), then moves.

    Settings that cannot be altered are left out, and moves unless the bucket `has_classes`.
    """
    alters: dict[tuple[str, str], AlterStep] = {}
    moves: list[RecodeStep] = []
    for each in advised.advice:  # the largest saving first
        if each.move is not None and has_classes:
            moves.append(_recode_step(manager, each, each.move, advised.prices, now_ms))
        elif each.setting is not None and (each.topic, each.setting[0]) not in alters:
            step = _alter_step(manager, each, *each.setting, now_ms)
            alters |= {(each.topic, step.key): step} if step is not None else {}
    steps: tuple[Step, ...] = (*alters.values(), *(each for each in moves if each.segments))
    basis = plan_basis(manager, manager.config, {each.topic for each in steps}, advised.prices)
    own = {_basis_name(each) for each in alters.values()}
    return SavedPlan(
        plan=Plan(now_ms=now_ms),
        made_ms=now_ms,
        settings={},
        fingerprints={},
        basis={name: text for name, text in basis.items() if name not in own},
        steps=steps,
    )


def _alter_step(manager: LogManager, advice: CostAdvice, key: str, value: str, now_ms: int) -> AlterStep | None:
    value = canonical(key, value)
    try:
        if manager.topics.dry_run.altered_topic(advice.topic, {key: value}, now_ms=now_ms).outranked:
            return None
    except InvalidRequest:
        return None
    puts = manager.topics.get(advice.topic).partition_count
    return AlterStep(
        topic=advice.topic,
        key=key,
        before=_effective(manager, advice.topic, key),
        value=value,
        reason=advice.reason,
        puts=puts,
        gets=0,
        once_dollars=request_cost(puts=puts),
        now_dollars=advice.now_dollars,
        then_dollars=advice.then_dollars,
    )


def _recode_step(manager: LogManager, advice: CostAdvice, move: Move, prices: PriceTable, now_ms: int) -> RecodeStep:
    entry_filter = EntryFilter(min_bytes=move.min_bytes, since_ms=move.since_ms, until_ms=move.until_ms)
    moved: list[MovedSegment] = []
    puts, gets, dollars = 0, 0, 0.0
    for held in manager.partitions.all([advice.topic]):
        rows = [each for each in log_entries(held) if entry_filter(each) and _class_of(each) != move.to]
        manifests = -(-len(rows) // GROUPS_A_MANIFEST)
        puts, dollars = puts + manifests, dollars + request_cost(puts=manifests, prices=prices.of(None))
        for each in rows:
            facts = {name: getattr(each, name) for name in ("base_offset", "next_offset", "ulid", "stored_bytes")}
            moved.append(MovedSegment(partition=held.name.partition, **facts))
            encoding = EncodingChoice(codec=each.codec, key_id=each.key_id, storage_class=move.to)
            cost = cost_of([each], encoding, prices, replaced_ms=now_ms)
            puts, gets, dollars = puts + cost.puts, gets + cost.gets, dollars + cost.dollars
    return RecodeStep(
        topic=advice.topic,
        storage_class=move.to,
        segments=tuple(moved),
        reason=advice.reason,
        puts=puts,
        gets=gets,
        once_dollars=dollars,
        now_dollars=advice.now_dollars,
        then_dollars=advice.then_dollars,
    )


def _class_of(entry: SegmentEntry) -> str:
    return entry.storage_class or STANDARD


def _effective(manager: LogManager, topic: str, key: str) -> str:
    return manager.config.topic_properties(topic, manager.topics.get(topic).properties)[key]


def _basis_name(step: AlterStep) -> str:
    return f"{step.topic} {step.key}"


def check_advice(manager: LogManager, saved: SavedPlan) -> list[StepState]:
    """Return the state of each step. Raises Conflict, naming the changes, if a step or the basis changed."""
    steps = saved.steps or ()
    topics = {each.topic for each in steps}
    own = {_basis_name(each) for each in steps if isinstance(each, AlterStep)}
    basis = plan_basis(manager, manager.config, topics, configured_prices(manager.config))
    others = basis_changes(saved.basis, {name: text for name, text in basis.items() if name not in own})
    others.sort(key=lambda each: " topic id " not in each)  # ids first: they explain other settings
    states: list[StepState] = []
    changed: list[str] = []
    known = {each.name for each in manager.topics.all()}
    for step in steps:
        if step.topic in known:  # a deleted topic is reported with the basis, by its id
            state, wrong = _altered(manager, step) if isinstance(step, AlterStep) else _recoded(manager, step)
            states.append(state)
            changed += wrong
    if others or changed:
        facts = {"settings": "; ".join(others[:NAMED_MAX])} if others else {}
        facts |= {"changed": "; ".join(changed[:NAMED_MAX]), "changes": str(len(changed))} if changed else {}
        raise Conflict(CHANGED, **facts)
    return states


def _altered(manager: LogManager, step: AlterStep) -> tuple[StepState, list[str]]:
    has = _effective(manager, step.topic, step.key)
    is_done = parse(step.key, has) == parse(step.key, step.value)
    is_due = parse(step.key, has) == parse(step.key, step.before)
    wrong = [] if is_done or is_due else [f"{_basis_name(step)} {step.before} -> {has}"]
    return StepState(step=step, parts=1, due=0 if is_done else 1), wrong


def _recoded(manager: LogManager, step: RecodeStep) -> tuple[StepState, list[str]]:
    rows: dict[tuple[int, int, int], SegmentEntry] = {}
    for held in manager.partitions.all([step.topic]):
        rows |= {(held.name.partition, row.base_offset, row.next_offset): row for row in log_entries(held)}
    due, wrong = 0, []
    for each in step.segments:
        row = rows.get((each.partition, each.base_offset, each.next_offset))
        if row is not None and row.ulid == each.ulid:
            due += 1
        elif row is None or _class_of(row) != step.storage_class:
            wrong.append(f"{step.topic}/{each.partition} segment {each.base_offset}")
    return StepState(step=step, parts=len(step.segments), due=due), wrong


def apply_advice(
    manager: LogManager,
    saved: SavedPlan,
    store: ObjectStore,
    *,
    now_ms: Callable[[], int],
    keys: KeyRing = NO_KEYS,
    target_of: Callable[[str], ObjectStore] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[StepState]:
    """Apply the due steps, in order; return the state of each step afterwards.

    `target_of(storage_class)` opens the bucket `store` with new objects in this class, before the first step; without
    it objects get the class of `store`. A move stops early if `should_stop`, or if the manifest has no room for more
    pending deletes; a later run continues. Raises Conflict, with nothing done, as `check_advice`. After
    other errors earlier steps stay done.
    """
    states, found = check_advice(manager, saved), []
    with ExitStack() as opened:
        targets: dict[str, ObjectStore | None] = {}
        for state in states:
            if isinstance(state.step, RecodeStep) and state.due and state.step.storage_class not in targets:
                target = target_of(state.step.storage_class) if target_of is not None else None
                targets[state.step.storage_class] = target
                if target is not None:
                    opened.callback(target.close)
        for state in states:
            step, due = state.step, state.due
            if due and not should_stop():
                if isinstance(step, AlterStep):
                    manager.topics.alter(step.topic, {step.key: step.value}, now_ms=now_ms())
                    due = 0
                else:
                    target = targets[step.storage_class]
                    due -= _move(manager, step, store, target, now_ms=now_ms, keys=keys, should_stop=should_stop)
            found.append(StepState(step=step, parts=state.parts, due=due))
    return found


def _move(
    manager: LogManager,
    step: RecodeStep,
    store: ObjectStore,
    target: ObjectStore | None,
    *,
    now_ms: Callable[[], int],
    keys: KeyRing,
    should_stop: Callable[[], bool],
) -> int:
    ulids_of: dict[int, set[str]] = {}
    for each in step.segments:
        ulids_of.setdefault(each.partition, set()).add(each.ulid)
    moved, topic_id = 0, manager.topics.get(step.topic).topic_id
    for partition, ulids in sorted(ulids_of.items()):
        if should_stop():
            break
        plan = plan_recode(
            store,
            RemotePartitionName(topic=step.topic, topic_id=topic_id, partition=partition),
            now_ms=now_ms(),
            storage_class=step.storage_class,
            entry_filter=lambda entry, ulids=ulids: entry.ulid in ulids,  # type: ignore[misc]
            settings=manager.config.topic_properties,
        )
        moved += run_rewrite(store, plan, now_ms=now_ms, keys=keys, target=target, should_stop=should_stop).rows_before
    return moved
