"""The states of a group, their transitions, and what an event of a group results in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from tiered.serve.groups.offsets_records import GroupValue
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import JoinGroupResponse, SyncGroupResponse


class GroupState(Enum):
    """Values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"  # of consumer groups, as the next one (`tiered.serve.groups.consumer`)
    RECONCILING = "Reconciling"


_S = GroupState
TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(  # of classic groups
    {
        _S.EMPTY: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
        _S.PREPARING_REBALANCE: frozenset({_S.EMPTY, _S.COMPLETING_REBALANCE, _S.DEAD}),
        _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.PREPARING_REBALANCE, _S.DEAD}),
        _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
        _S.DEAD: frozenset(),
    }
)


class Moment(NamedTuple):
    """`ticks_ms` never falls and drives deadlines; `wall_ms` is the time in records."""

    ticks_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    waiter: object
    response: JoinGroupResponse | SyncGroupResponse


@dataclass(frozen=True, slots=True)
class Store:
    """`done` gets the error of the append, and the moment."""

    value: GroupValue
    done: Callable[[Error, Moment], None]


Output = Answer | Store
