"""A plan kept in a file: what it decided, with which settings, on which state; and doing it, if that state still holds.

The fingerprint of a partition is of everything a decision could be about: the topic's rules, log start, closed local
segments, rows and pages, objects that wait for deletion, views. Beside them stands what else it rests on: settings,
because a plan to expire is not what anybody wants any more who has raised the retention since, and prices, because it
was looked at with its dollars (`tiered.plans.plan_basis`). Records that arrive meanwhile change none of it, nor does
another writer that takes over and changes nothing. A plan is for the partitions that it has decisions for; what became
of the others does not matter to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import msgspec

from local.errors import Conflict, InvalidRequest
from local.names import TopicPartition
from policies.decisions import Decision, Plan
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import SpillRow
from tiered.config.price_file import told_prices
from tiered.config.user_files import read_given, write_given
from tiered.manager.manager import LogManager
from tiered.plans.plan_basis import basis_changes, plan_basis

if TYPE_CHECKING:
    from tiered.maintenance.apply import Applied
    from tiered.plans.planning import PricedPlan

SCHEMA_VERSION = 1
KIND = "tiered-plan"
_KINDS: dict[str, type[Decision]] = {kind.__name__: kind for kind in get_args(Decision)}
# What msgspec knows of them is made at import: made in two threads at once it ends the process (0.22).
for _kind in _KINDS.values():
    msgspec.json.Decoder(_kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """`plan` as it was made at `made_ms` for the moment `plan.now_ms`, under `settings` (those after ``-X``).

    `fingerprints` by partition are of the state that it was made from, `basis` is what else it rests on.
    """

    plan: Plan
    made_ms: int
    settings: Mapping[str, str]
    fingerprints: Mapping[TopicPartition, str]
    basis: Mapping[str, str]

    @property
    def is_for_later(self) -> bool:
        """Made for another moment than its own: to look at, not to apply."""
        return self.plan.now_ms > self.made_ms

    @property
    def fingerprint(self) -> str:
        """One for all of it."""
        text = "".join(f"{name} {each}\n" for name, each in sorted(self.fingerprints.items()))
        text += "".join(f"{name} {each}\n" for name, each in sorted(self.basis.items()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def save_plan(priced: PricedPlan, *, made_ms: int, settings: Mapping[str, str]) -> SavedPlan:
    """The plan with the fingerprints of the state that it was made from."""
    plan = priced.plan
    found = {each.partition: fingerprint(each) for each in priced.snapshots if each.partition in plan.decisions}
    return SavedPlan(plan=plan, made_ms=made_ms, settings=dict(settings), fingerprints=found, basis=dict(priced.basis))


def fingerprint(snapshot: PartitionSnapshot) -> str:
    """16 hex digits that change with whatever a decision could be about (module text)."""
    state = hashlib.blake2b(digest_size=8)
    facts: list[object] = [snapshot.log_start_offset, snapshot.is_tiered, snapshot.cleaner_offset]
    facts.append(snapshot.rules)
    facts += [(each.base_offset, each.next_offset, each.size_bytes, each.max_timestamp_ms) for each in snapshot.closed]
    # Rows of a page may be known one by one or not at all; what a page holds is told by its name alone.
    pages = sorted((spill.base_offset, spill.next_offset, spill.key) for spill in _pages(snapshot))
    facts += pages
    facts += [row.ulid for row in snapshot.remote if not pages or row.base_offset >= pages[-1][1]]
    facts += sorted(each.key for each in snapshot.unlinked)
    facts += sorted(each.spill.key for each in snapshot.unlinked_pages)
    facts += [(view.name, view.horizon_offset) for view in snapshot.all_views]
    state.update(repr(facts).encode())
    return state.hexdigest()


def _pages(snapshot: PartitionSnapshot) -> Sequence[SpillRow]:
    return (*snapshot.known_pages, *snapshot.spills)


def changed_partitions(saved: SavedPlan, snapshots: Iterable[PartitionSnapshot]) -> list[TopicPartition]:
    """The partitions of the plan whose state is another one now, or cannot be seen."""
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
    """Do what the plan says, as `LogManager.apply`. Nothing is done where any partition of it has changed: Conflict.

    The manager has to be opened with the plan's settings. Raises InvalidRequest for a plan that is for a later moment.
    """
    check_unchanged(saved, manager, now_ms)
    plan = Plan(now_ms=max(now_ms, saved.plan.now_ms), decisions=saved.plan.decisions)
    return manager.apply(plan, progress=progress, should_stop=should_stop)


def check_unchanged(saved: SavedPlan, manager: LogManager, now_ms: int) -> None:
    """Raises Conflict where a partition of the plan or what it rests on has changed, InvalidRequest for a plan of a
    later moment."""
    if saved.is_for_later:
        raise InvalidRequest("applying a saved plan, it was made for a later moment", at_ms=saved.plan.now_ms)
    topics = {name.topic for name in saved.plan.decisions}
    facts: dict[str, object] = {}
    others = basis_changes(saved.basis, plan_basis(manager, manager.config, topics, told_prices(manager.config)))
    if others:
        facts["settings"] = "; ".join(others[:5])
    changed = changed_partitions(saved, manager.snapshots(now_ms, topics))
    if changed:
        facts |= {"partitions": ",".join(map(str, changed[:5])), "changed": len(changed)}
    if facts:
        wrong = "applying a saved plan, the state has changed since it was made: run 'tiered plan --out' again"
        raise Conflict(wrong, **facts, of=len(saved.fingerprints))


# -- the file ----------------------------------------------------------------------------------------------------------


def encode_plan(saved: SavedPlan) -> bytes:
    """JSON for people and programs; `decode_plan` reads it back."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "made_ms": saved.made_ms,
        "at_ms": saved.plan.now_ms,
        "settings": saved.settings,
        "fingerprint": saved.fingerprint,
        "basis": saved.basis,
        "partitions": [
            {
                "topic": name.topic,
                "partition": name.partition,
                "fingerprint": saved.fingerprints.get(name, ""),
                "decisions": [{"decision": type(each).__name__, **msgspec.to_builtins(each)} for each in decided],
            }
            for name, decided in sorted(saved.plan.decisions.items())
        ],
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"


class _Partition(msgspec.Struct):
    topic: str
    partition: int
    fingerprint: str
    decisions: list[dict[str, object]]


class _File(msgspec.Struct):
    schema_version: int
    kind: str
    made_ms: int
    at_ms: int
    settings: dict[str, str]
    fingerprint: str
    basis: dict[str, str]
    partitions: list[_Partition]


# Made at import: made in two threads at once it ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)


def decode_plan(body: bytes) -> SavedPlan:
    """The inverse. Raises InvalidRequest for what is no such file, or was changed by hand where it must not be."""
    try:
        file = _FILE.decode(body)
        if (file.kind, file.schema_version) != (KIND, SCHEMA_VERSION):
            raise InvalidRequest("reading a saved plan, of another kind", kind=file.kind, version=file.schema_version)
        decided = {
            TopicPartition(each.topic, each.partition): [_decision(one) for one in each.decisions]
            for each in file.partitions
        }
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            "reading a saved plan, it is none or was damaged; make one with 'tiered plan --out FILE'", cause=error
        ) from None
    found: dict[TopicPartition, Sequence[Decision]] = dict(decided)
    saved = SavedPlan(
        plan=Plan(now_ms=file.at_ms, decisions=found),
        made_ms=file.made_ms,
        settings=file.settings,
        fingerprints={TopicPartition(each.topic, each.partition): each.fingerprint for each in file.partitions},
        basis=file.basis,
    )
    if saved.fingerprint != file.fingerprint:
        raise InvalidRequest("reading a saved plan, its fingerprints do not belong together")
    return saved


def _decision(fields: Mapping[str, object]) -> Decision:
    name = str(fields.get("decision"))
    if name not in _KINDS:
        raise InvalidRequest("reading a saved plan, no such decision", decision=name)
    given = {key: value for key, value in fields.items() if key != "decision"}
    return msgspec.convert(given, _KINDS[name])


WRITING = "writing the plan"


def write_plan(saved: SavedPlan, path: str) -> None:
    """Put the file at `path`, whole; one that is there is replaced. Raises as
    `tiered.config.user_files.write_given`."""
    write_given(path, encode_plan(saved), WRITING)


def read_plan(path: str) -> SavedPlan:
    """Raises NotFound, and InvalidRequest for what is no plan."""
    return plan_of(read_body(path), path)


def read_body(path: str) -> bytes:
    """What is in the file. Raises NotFound."""
    return read_given(path, "reading a saved plan", "make one with 'tiered plan --out FILE'")


def plan_of(body: bytes, path: str) -> SavedPlan:
    """`decode_plan`, its errors naming the file."""
    try:
        return decode_plan(body)
    except InvalidRequest as error:
        raise InvalidRequest(error.attempt, **error.facts, file=path) from None
