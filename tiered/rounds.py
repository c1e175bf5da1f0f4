"""One round over the partitions of a plan: cleanings side by side, everything else in order beside them.

Cleaning is what takes long, and its loops let other threads run (they hold no interpreter lock). With one thread, or
one log to clean, all is done in the plan's order by the caller's thread. A partition is applied once, by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from local.names import TopicPartition
from policies.decisions import CleanLog, Decision, Plan
from tiered.apply import Applied

ApplyOne = Callable[[TopicPartition, Sequence[Decision]], Applied | None]


def apply_plan(plan: Plan, apply_one: ApplyOne, *, threads: int) -> dict[TopicPartition, Applied]:
    """What `apply_one` answered for each partition, without those it left out (None). Raises what it raises."""
    cleaning = [
        name for name, decisions in plan.decisions.items() if any(isinstance(each, CleanLog) for each in decisions)
    ]
    if threads == 1 or len(cleaning) < 2:
        found = {name: apply_one(name, decisions) for name, decisions in plan.decisions.items()}
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="log-cleaner") as pool:
            passes = {name: pool.submit(apply_one, name, plan.decisions[name]) for name in cleaning}
            others = (each for each in plan.decisions.items() if each[0] not in passes)
            found = {name: apply_one(name, decisions) for name, decisions in others}
            found |= {name: under_way.result() for name, under_way in passes.items()}
    return {name: applied for name, applied in found.items() if applied is not None}
