"""A priced plan as flat rows, shared by the command and the web page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from policies.decisions import place_of
from tiered.plans.planning import line_fields, told

if TYPE_CHECKING:
    from policies.cost.plan_cost import DecisionCost

Row = dict[str, object]

# In the order of a plan. The sign shows the effect on bytes: + adds, - removes, ~ changes.
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


def decision_row(line: DecisionCost) -> Row:
    """Return one decision: action, place, range, bytes, requests, dollars once and a month, reason."""
    sign, verb = VERBS[kind_of(line)]
    return {
        **line_fields(line),
        "sign": sign,
        "verb": verb,
        "where": str(line.partition),
        "what": place_of(line.decision),
        "requests": line.puts + line.gets + line.lists,
        "once": told(line.dollars + line.early_dollars),
    }


def total_rows(lines: Sequence[DecisionCost]) -> list[Row]:
    """Return the sums of each kind of decision in the plan."""
    found: list[Row] = []
    for kind, (sign, verb) in VERBS.items():
        some = [each for each in lines if kind_of(each) == kind]
        if some:
            found.append(
                {
                    "sign": sign,
                    "verb": verb,
                    "decision": kind,
                    "count": len(some),
                    "size_bytes": sum(each.decision.size_bytes for each in some),
                    "requests": sum(each.puts + each.gets + each.lists for each in some),
                    "once": told(sum(each.dollars + each.early_dollars for each in some)),
                    "dollars_per_month": told(sum(each.monthly_dollars for each in some)),
                }
            )
    return found


def kind_of(line: DecisionCost) -> str:
    """Return the name of the decision's class in `policies.decisions`."""
    return type(line.decision).__name__
