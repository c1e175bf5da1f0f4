"""A plan in a file, with the state behind it; and its application if the state is unchanged.

A file has decisions of maintenance (`tiered plan --out`), or steps of cost advice (`tiered cost advise --out`), which
`tiered.cost.advice_applying` applies. A step can alter only the settings that `policies.cost.cost_advice` proposes, so
no file can cause the loss of a record.

The fingerprint of a partition covers everything that a decision depends on: the topic's rules, log start offset, closed
local segments, segment entries and pages, pending deletes, views. New records do not change it, and neither does a
takeover without other changes. Only partitions with decisions matter. `tiered.plans.planning` has the other facts.

| kind, version | content | written |
|---|---|---|
| tiered-plan, 1 | decisions | yes |
| tiered-plan, 2 | steps; a version that does not know them refuses the file | yes |
| tiered-advice, 1 | steps | by earlier versions |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from local.errors import Conflict, InvalidRequest
from local.names import TopicPartition
from policies.cost.cost_advice import SETTINGS
from policies.decisions import Decision, Plan
from policies.snapshot import PartitionSnapshot
from tiered.config.price_file import prices_or_none
from tiered.config.units import counted
from tiered.config.user_files import read_given, write_given
from tiered.manager.manager import LogManager
from tiered.plans.planning import PricedPlan, basis_changes, plan_basis

if TYPE_CHECKING:
    from tiered.maintenance.upload_and_commit import Applied

KIND = "tiered-plan"
VERSION_OF_DECISIONS, VERSION_OF_STEPS = 1, 2
_READ = {(KIND, VERSION_OF_DECISIONS), (KIND, VERSION_OF_STEPS), ("tiered-advice", 1)}
WRITING = "cannot write the plan"
READING = "cannot read the saved plan"
_KINDS: dict[str, type[Decision]] = {kind.__name__: kind for kind in get_args(Decision)}
# Created at import: creating it in two threads at once ends the process (msgspec 0.22).

for _kind in _KINDS.values():
    msgspec.json.Decoder(_kind)


# The fingerprint covers the fields of a step in this order.


class AlterStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step", tag="alter"):
    """A setting of a topic to alter.

    `before` is its value at the time of the advice. Dollars a month are the topic's, with this change alone. `puts` are
    sent to the bucket once, one for each partition.
    """

    topic: str
    key: str
    before: str
    value: str
    reason: str
    puts: int
    gets: int
    once_dollars: float
    now_dollars: float
    then_dollars: float

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def change(self) -> str:
        return f"{self.key}={self.value}"


class MovedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment by its half-open offsets and its ULID."""

    partition: int
    base_offset: int
    next_offset: int
    ulid: str
    stored_bytes: int


class RecodeStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step", tag="recode"):
    """Segments of a topic to move to another class, with the requests, the price once and a month."""

    topic: str
    storage_class: str
    segments: tuple[MovedSegment, ...]
    reason: str
    puts: int
    gets: int
    once_dollars: float
    now_dollars: float
    then_dollars: float

    @property
    def size_bytes(self) -> int:
        return sum(each.stored_bytes for each in self.segments)

    @property
    def change(self) -> str:
        return f"{counted(len(self.segments), 'segment')} to {self.storage_class}"


Step = AlterStep | RecodeStep


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan for `plan.now_ms`, or `steps` in order; `fingerprints` and `basis` are the state behind it."""

    plan: Plan
    made_ms: int
    settings: Mapping[str, str]
    fingerprints: Mapping[TopicPartition, str]
    basis: Mapping[str, str]
    steps: tuple[Step, ...] | None = None

    @property
    def fingerprint(self) -> str:
        if self.steps is not None:
            body = msgspec.json.encode([self.steps, sorted(self.basis.items())])
        else:
            facts = [*sorted(self.fingerprints.items()), *sorted(self.basis.items())]
            body = "".join(f"{name} {each}\n" for name, each in facts).encode()
        return hashlib.blake2b(body, digest_size=8).hexdigest()


def save_plan(priced: PricedPlan, *, made_ms: int, settings: Mapping[str, str]) -> SavedPlan:
    plan = priced.plan
    found = {each.partition: fingerprint(each) for each in priced.snapshots if each.partition in plan.decisions}
    return SavedPlan(plan=plan, made_ms=made_ms, settings=dict(settings), fingerprints=found, basis=dict(priced.basis))


def fingerprint(snapshot: PartitionSnapshot) -> str:
    """Return 16 hex digits of the state that a decision can depend on."""
    state = hashlib.blake2b(digest_size=8)
    facts: list[object] = [snapshot.log_start_offset, snapshot.is_tiered, snapshot.cleaner_offset]
    facts.append(snapshot.rules)
    facts += [(each.base_offset, each.next_offset, each.size_bytes, each.max_timestamp_ms) for each in snapshot.closed]
    # The entries of a page may be loaded or not; the name of a page stands for its content.
    pages = sorted((page.base_offset, page.next_offset, page.key) for page in (*snapshot.known_pages, *snapshot.pages))
    facts += pages
    facts += [row.ulid for row in snapshot.remote if not pages or row.base_offset >= pages[-1][1]]
    facts += sorted(each.key for each in snapshot.pending_deletes)
    facts += sorted(each.page.key for each in snapshot.pending_page_deletes)
    facts += [(view.name, view.horizon_offset) for view in snapshot.all_views]
    state.update(repr(facts).encode())
    return state.hexdigest()


def changed_partitions(saved: SavedPlan, snapshots: Iterable[PartitionSnapshot]) -> list[TopicPartition]:
    now = {each.partition: fingerprint(each) for each in snapshots}
    return sorted(name for name, before in saved.fingerprints.items() if now.get(name) != before)


def apply_saved(
    manager: LogManager,
    saved: SavedPlan,
    *,
    now_ms: int,
    progress: Callable[[TopicPartition, Decision], None] = lambda partition, decision: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[TopicPartition, Applied]:
    """Carry out the plan; return the results by partition. Raises as `check_unchanged`, with nothing done."""
    check_unchanged(saved, manager, now_ms)
    plan = Plan(now_ms=max(now_ms, saved.plan.now_ms), decisions=saved.plan.decisions)
    return manager.apply(plan, progress=progress, should_stop=should_stop)


def check_unchanged(saved: SavedPlan, manager: LogManager, now_ms: int) -> None:
    """Raise Conflict if the state behind the plan changed, InvalidRequest for a plan for a later time."""
    if saved.plan.now_ms > saved.made_ms:
        raise InvalidRequest("cannot apply the saved plan, it was made for a later time", at_ms=saved.plan.now_ms)
    topics = {name.topic for name in saved.plan.decisions}
    facts: dict[str, object] = {}
    others = basis_changes(saved.basis, plan_basis(manager, manager.config, topics, prices_or_none(manager.config)))
    if others:
        facts["settings"] = "; ".join(others[:5])
    changed = changed_partitions(saved, manager.snapshots(now_ms, topics))
    if changed:
        facts |= {"partitions": ",".join(map(str, changed[:5])), "changed": len(changed)}
    if facts:
        wrong = "cannot apply the saved plan, the state has changed since: run 'tiered plan --out' again"
        raise Conflict(wrong, **facts, of=len(saved.fingerprints))


class PlannedPartition(msgspec.Struct):
    """The decisions for a partition, in order: the name of each in `decision`, and its fields."""

    topic: str
    partition: int
    fingerprint: str
    decisions: list[dict[str, Any]]


class PlanFile(msgspec.Struct, kw_only=True):
    """A saved plan: decisions by partition, or steps of cost advice."""

    schema_version: int
    kind: str
    made_ms: int
    at_ms: int = 0
    settings: dict[str, str] = {}
    fingerprint: str
    basis: dict[str, str]
    partitions: list[PlannedPartition] = []
    steps: tuple[Step, ...] = ()


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(PlanFile)


def encode_plan(saved: SavedPlan) -> bytes:
    partitions = [
        PlannedPartition(
            name.topic,
            name.partition,
            saved.fingerprints.get(name, ""),
            [{"decision": type(each).__name__, **msgspec.to_builtins(each)} for each in decided],
        )
        for name, decided in sorted(saved.plan.decisions.items())
    ]
    file = PlanFile(
        schema_version=VERSION_OF_DECISIONS if saved.steps is None else VERSION_OF_STEPS,
        kind=KIND,
        made_ms=saved.made_ms,
        at_ms=saved.plan.now_ms,
        settings=dict(saved.settings),
        fingerprint=saved.fingerprint,
        basis=dict(saved.basis),
        partitions=partitions,
        steps=saved.steps or (),
    )
    content = msgspec.to_builtins(file)
    if saved.steps is None:
        del content["steps"]
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def decode_plan(body: bytes) -> SavedPlan:
    """Return the plan of a file's bytes. Raises InvalidRequest for other bytes and inconsistent edits."""
    try:
        file = _FILE.decode(body)
        if (file.kind, file.schema_version) not in _READ:
            raise InvalidRequest(f"{READING}, it is of another kind", kind=file.kind, version=file.schema_version)
        decided: dict[TopicPartition, Sequence[Decision]] = {
            TopicPartition(each.topic, each.partition): [_decision(one) for one in each.decisions]
            for each in file.partitions
        }
    except msgspec.MsgspecError as error:
        advice = "make one with 'tiered plan --out FILE' or 'tiered cost advise --out FILE'"
        wrong = f"{READING}, the file is not a plan or is damaged; {advice}"
        raise InvalidRequest(wrong, cause=error) from None
    for step in file.steps:
        if isinstance(step, AlterStep) and step.key not in SETTINGS:
            raise InvalidRequest(f"{READING}, it contains a setting that is never advised", setting=step.key)
    saved = SavedPlan(
        plan=Plan(now_ms=file.at_ms, decisions=decided),
        made_ms=file.made_ms,
        settings=file.settings,
        fingerprints={TopicPartition(each.topic, each.partition): each.fingerprint for each in file.partitions},
        basis=file.basis,
        steps=None if (file.kind, file.schema_version) == (KIND, VERSION_OF_DECISIONS) else file.steps,
    )
    if saved.fingerprint != file.fingerprint:
        raise InvalidRequest(f"{READING}, its fingerprint contradicts its content: the file was edited")
    return saved


def _decision(fields: Mapping[str, object]) -> Decision:
    name = str(fields.get("decision"))
    if name not in _KINDS:
        raise InvalidRequest(f"{READING}, a decision is unknown", decision=name)
    return msgspec.convert(fields, _KINDS[name])


def write_plan(saved: SavedPlan, path: str) -> None:
    write_given(path, encode_plan(saved), WRITING)


def read_plan(path: str) -> SavedPlan:
    """Read a plan. Raises NotFound, and InvalidRequest for a file that is no plan."""
    body = read_given(path, READING, "make one with 'tiered plan --out FILE'")
    try:
        return decode_plan(body)
    except InvalidRequest as error:
        raise InvalidRequest(error.attempt, **error.facts, file=path) from None
