"""A plan with its price: what a round would do at some moment, decided and priced on the same snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.names import TopicPartition
from policies.decisions import Plan
from policies.plan_cost import DecisionCost, PlanCost, plan_cost
from policies.prices import PriceTable
from policies.snapshot import PartitionSnapshot
from tiered.manager import LogManager
from tiered.price_file import configured_prices

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """`plan` and what it costs; `snapshots` are what it was made from. `problems` are the partitions left out."""

    plan: Plan
    cost: PlanCost
    prices: PriceTable
    snapshots: tuple[PartitionSnapshot, ...]
    problems: Mapping[TopicPartition, str]

    def to_frame(self) -> pd.DataFrame:
        """A line for each decision, with its requests and dollars. Raises ImportError without pandas."""
        import pandas

        return pandas.DataFrame([line_fields(each) for each in self.cost.lines])


def priced_plan(manager: LogManager, at_ms: int, topics: Iterable[str] | None = None) -> PricedPlan:
    """What a round would do at `at_ms`, and what that costs. Changes nothing.

    For a later moment: if nothing came and nothing was done until then. Raises NotFound for a topic that is not there.
    """
    names = None if topics is None else sorted(set(topics))
    for name in names or ():
        manager.topic(name)
    snapshots = manager.snapshots(at_ms, names)
    prices = configured_prices(manager.config)
    plan = manager.plan(at_ms, names)
    problems = {name: str(each) for name, each in manager.problems.items() if names is None or name.topic in names}
    return PricedPlan(
        plan=plan,
        cost=plan_cost(plan, snapshots, prices),
        prices=prices,
        snapshots=tuple(snapshots),
        problems=problems,
    )


def line_fields(line: DecisionCost) -> dict[str, object]:
    """One decision and its price as flat fields."""
    return {
        "decision": type(line.decision).__name__,
        "topic": line.partition.topic,
        "partition": line.partition.partition,
        "size_bytes": line.decision.size_bytes,
        "reason": line.decision.reason,
        "puts": line.puts,
        "gets": line.gets,
        "lists": line.lists,
        "deletes": line.deletes,
        "bytes_in": line.bytes_in,
        "dollars": line.dollars,
        "early_deletion_dollars": line.early_dollars,
        "dollars_per_month": line.monthly_dollars,
    }
