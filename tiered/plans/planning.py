"""A plan with prices: decisions of maintenance, priced on the same snapshots; and its flat rows.

The basis of a saved plan, apart from partition state, is settings, prices, bucket and identity of the topics, by name.
Every setting with a value other than its default counts, except those in `WITHOUT_EFFECT`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from typing import TYPE_CHECKING

from local.errors import LogError, NotFound
from local.names import TopicPartition
from policies.cost.plan_cost import DecisionCost, PlanCost, plan_cost
from policies.cost.prices import BUILT_IN, PriceTable
from policies.decisions import Deferral, Plan, place_of
from policies.plan import plan as plan_snapshots
from policies.retention import page_to_know
from policies.snapshot import PartitionSnapshot
from policies.tiering import remote_unknown_deferrals
from tiered.config.config import Config, resolve_rules
from tiered.config.price_file import new_class, prices_or_none
from tiered.config.properties import DEFAULTS, TABLE, canonical, find_property, parse
from tiered.manager.manager import LogManager
from tiered.status.status_report import all_usage, snapshots_at_hand, unread_partitions

if TYPE_CHECKING:
    import pandas as pd

COPY_DISABLE = "remote.log.copy.disable"
Row = dict[str, object]

# In the order of a plan. The sign is the effect on bytes: + adds, - removes, ~ changes.
VERBS = {
    "RollActive": ("~", "roll"),
    "CleanLog": ("~", "clean"),
    "CopySegment": ("+", "upload"),
    "ReplaceRemote": ("~", "replace"),
    "AdvanceCleanedOffset": ("~", "note clean"),
    "DropLocal": ("-", "local"),
    "BuildView": ("+", "view"),
    "AdvanceLogStart": ("~", "log start"),
    "DisableTier": ("-", "give up"),
    "ExpireRemote": ("-", "expire"),
    "ExpirePage": ("-", "expire page"),
    "DeletePending": ("-", "delete"),
    "DeletePage": ("-", "delete page"),
    "CollectManifests": ("-", "collect"),
}
WITHOUT_EFFECT = frozenset(row.name for row in TABLE if row.not_planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan, its cost, and the `snapshots` it was made from. `problems` are the partitions left out.

    Without `prices` all dollars of `cost` are NaN. `missing` are partitions with an unreadable tier: they have no
    decisions, and no total is known. The oldest page of `unread` partitions may expire in part, but was not fetched.
    """

    plan: Plan
    cost: PlanCost
    prices: PriceTable | None
    snapshots: tuple[PartitionSnapshot, ...]
    problems: Mapping[TopicPartition, str]
    unread: tuple[TopicPartition, ...] = ()
    basis: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[TopicPartition, LogError] = field(default_factory=dict)

    def totals(self) -> dict[str, float | int | None]:
        """Return dollars a month and disk bytes, now and then, and dollars once; None if unknown."""
        cost = self.cost
        is_whole = not self.missing
        opened = {each.partition for each in self.snapshots}
        return {
            "now_dollars_per_month": known_amount(cost.now_dollars) if is_whole else None,
            "then_dollars_per_month": known_amount(cost.then_dollars) if is_whole else None,
            "dollars_once": known_amount(cost.dollars) if is_whole else None,
            "now_disk_bytes": cost.now_disk_bytes if opened.issuperset(self.missing) else None,
            "then_disk_bytes": cost.then_disk_bytes if is_whole else None,
        }

    def to_frame(self) -> pd.DataFrame:
        import pandas

        return pandas.DataFrame([line_fields(each) for each in self.cost.lines])


def priced_plan(
    manager: LogManager,
    at_ms: int,
    topics: Iterable[str] | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
    may_ask: bool = True,
) -> PricedPlan:
    """Plan and price the maintenance at `at_ms`. Changes nothing.

    A plan for a later time assumes no new records and no maintenance until then. `overrides` are topic settings for
    this plan only. Without `may_ask` no request is sent, and some pages stay `unread`. Raises NotFound for an unknown
    topic, InvalidRequest for a setting that topics do not have or that contradicts others.
    """
    names = None if topics is None else sorted(set(topics))
    for name in names or ():
        manager.topics.get(name)
    take_snapshots = manager.snapshots if may_ask else partial(snapshots_at_hand, manager)
    snapshots, config = take_snapshots(at_ms, names), manager.config
    if overrides:
        config = _overridden(config, overrides)
        snapshots = _under(manager, config, snapshots, COPY_DISABLE in overrides)
    known = [each for each in snapshots if not each.is_remote_unknown]
    prices = prices_or_none(manager.config)
    problems = {name: str(each) for name, each in manager.problems.items() if names is None or name.topic in names}
    plan = plan_snapshots(known, at_ms)
    plan = replace(plan, deferrals={**plan.deferrals, **_of_unknown(snapshots, problems)})
    table = prices or BUILT_IN
    cost = plan_cost(plan, snapshots, table, all_usage(manager, table), new_class=new_class(config))
    return PricedPlan(
        plan=plan,
        cost=cost if prices is not None else cost.without_dollars(),
        prices=prices,
        snapshots=tuple(snapshots),
        problems=problems,
        unread=tuple(each.partition for each in known if page_to_know(each) is not None),
        basis=plan_basis(manager, config, {each.topic for each in plan.decisions}, prices),
        missing=unread_partitions(manager, names),
    )


def _of_unknown(
    snapshots: Sequence[PartitionSnapshot], problems: Mapping[TopicPartition, str]
) -> dict[TopicPartition, list[Deferral]]:
    found: dict[TopicPartition, list[Deferral]] = {}
    for each in snapshots:
        if each.is_remote_unknown:
            why = " ".join(problems.get(each.partition, "the contents of its remote tier are unknown").split())
            found[each.partition] = remote_unknown_deferrals(each, why)
    return {name: some for name, some in found.items() if some}


def _overridden(config: Config, overrides: Mapping[str, str]) -> Config:
    where = {"option": "what if"}
    for name, text in overrides.items():
        find_property(name, where, per_topic=True)
        parse(name, text, where)
    canonical_values = {name: canonical(name, text) for name, text in overrides.items()}
    return replace(config, overrides={**config.overrides, **canonical_values})


def _under(
    manager: LogManager, config: Config, snapshots: Sequence[PartitionSnapshot], asks_for_copies: bool
) -> list[PartitionSnapshot]:
    """Return the same logs under other topic settings. A remote tier that is being given up stays so."""
    found = []
    for each in snapshots:
        topic, before = each.partition.topic, each.rules
        rules = resolve_rules(config.topic_properties(topic, manager.topics.get(topic).properties))
        if before.gives_up_remote or not asks_for_copies:  # these flags depend on more than settings
            rules = replace(rules, gives_up_remote=before.gives_up_remote, copy_disabled=before.copy_disabled)
        found.append(replace(each, rules=rules))
    return found


def known_amount(dollars: float) -> float | None:
    return None if isnan(dollars) else dollars


def line_fields(line: DecisionCost) -> dict[str, object]:
    return {
        "decision": kind_of(line),
        "topic": line.partition.topic,
        "partition": line.partition.partition,
        "size_bytes": line.decision.size_bytes,
        "reason": line.decision.reason,
        **{name: getattr(line, name) for name in ("puts", "gets", "lists", "deletes", "bytes_in")},
        "dollars": known_amount(line.dollars),
        "early_deletion_dollars": known_amount(line.early_dollars),
        "dollars_per_month": known_amount(line.monthly_dollars),
    }


def decision_row(line: DecisionCost) -> Row:
    sign, verb = VERBS[kind_of(line)]
    return {
        **line_fields(line),
        "sign": sign,
        "verb": verb,
        "where": str(line.partition),
        "what": place_of(line.decision),
        "requests": line.requests,
        "once": known_amount(line.dollars + line.early_dollars),
    }


def total_rows(lines: Sequence[DecisionCost]) -> list[Row]:
    found: list[Row] = []
    for kind, (sign, verb) in VERBS.items():
        if some := [each for each in lines if kind_of(each) == kind]:
            once = known_amount(sum(each.dollars + each.early_dollars for each in some))
            sums = {"size_bytes": sum(each.decision.size_bytes for each in some), "once": once}
            sums |= {"requests": sum(each.requests for each in some)}
            sums |= {"dollars_per_month": known_amount(sum(each.monthly_dollars for each in some))}
            found.append({"sign": sign, "verb": verb, "decision": kind, "count": len(some), **sums})
    return found


def kind_of(line: DecisionCost) -> str:
    return type(line.decision).__name__


def plan_basis(manager: LogManager, config: Config, topics: Iterable[str], prices: PriceTable | None) -> dict[str, str]:
    """Return the state behind a plan for `topics`, as text by name, without settings at their default."""
    found = {"prices": _priced_by(prices), "remote.url": config.remote_url or "none"}
    for name in sorted(topics):
        try:
            topic = manager.topics.get(name)
        except NotFound:
            continue
        found[f"{name} topic id"] = topic.topic_id
        for key, text in config.topic_properties(name, topic.properties).items():
            if key not in WITHOUT_EFFECT and (value := parse(key, text)) != parse(key, DEFAULTS[key]):
                found[f"{name} {key}"] = ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
    return found


def basis_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return ``orders retention.ms 86400000 -> 3600000`` for each fact that differs."""
    both = {name: (before.get(name, "built in"), now.get(name, "built in")) for name in sorted({*before, *now})}
    return [f"{name} {was} -> {has}" for name, (was, has) in both.items() if was != has]


def _priced_by(prices: PriceTable | None) -> str:
    if prices is None:
        return "unknown"
    return f"{prices.as_of} {prices.region} {hashlib.blake2b(repr(prices).encode(), digest_size=4).hexdigest()}"
