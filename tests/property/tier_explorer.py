"""Breadth-first search through every history of a small world: the first violation has the shortest history.

``python tests/property/tier_explorer.py --offsets 5 --losses 1 --retention --reader both`` counts the worlds of a
scope.
``--broken NAME`` breaks a rule of `tier_model.Rules` and prints the history that leads to the violation."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, fields
from hashlib import blake2b

from tier_model import Rules, Scope, World, steps, wrong

_Name = bytes


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a search. `story` is the shortest history to a violation, and empty if there is none."""

    worlds: int
    transitions: int
    deepest: int
    story: tuple[str, ...] = ()


def explore(scope: Scope, rules: Rules = Rules(), *, worlds_max: int = 50_000_000) -> Found:  # noqa: B008 - frozen
    """Search every world that is reachable from an empty one. Ends at the first violation."""
    first = World()
    came_from: dict[_Name, tuple[_Name, str] | None] = {_name(first): None}
    frontier, transitions, depth = [first], 0, 0
    while frontier:
        following: list[World] = []
        for world in frontier:
            name = _name(world)
            for label, after in steps(world, scope, rules):
                transitions += 1
                said = after if isinstance(after, str) else None
                if isinstance(after, World):
                    known = _name(after)
                    if known in came_from:
                        continue
                    came_from[known] = (name, label)
                    said = wrong(after)
                    following.append(after)
                if said is not None:
                    story = (*_story(came_from, name), label, said)
                    return Found(worlds=len(came_from), transitions=transitions, deepest=depth + 1, story=story)
        assert len(came_from) <= worlds_max, "the scope is too large"
        frontier = following
        depth += bool(following)
    return Found(worlds=len(came_from), transitions=transitions, deepest=depth)


def _name(world: World) -> _Name:
    """A 128-bit digest of a world: for a billion worlds the probability of a collision is below 1e-20."""
    return blake2b(repr(tuple(world)).encode(), digest_size=16).digest()


def _story(came_from: dict[_Name, tuple[_Name, str] | None], name: _Name) -> tuple[str, ...]:
    told: list[str] = []
    while (origin := came_from[name]) is not None:
        name, label = origin
        told.append(label)
    return tuple(reversed(told))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offsets", type=int, default=4)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--segment-records", type=int, default=1)
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--retention", action="store_true")
    parser.add_argument("--reader", choices=("both", "bucket"), action="append", default=[])
    parser.add_argument("--broken", choices=[field.name for field in fields(Rules)], action="append", default=[])
    asked = parser.parse_args()
    scope = Scope(
        offsets=asked.offsets,
        keys=asked.keys,
        segment_records=asked.segment_records,
        losses=asked.losses,
        has_retention=asked.retention,
        readers=tuple(sorted(each == "bucket" for each in asked.reader)),
    )
    began = time.monotonic()
    found = explore(scope, Rules(**dict.fromkeys(asked.broken, True)))
    for number, line in enumerate(found.story, start=1):
        print(f"{number:3}. {line}" if number < len(found.story) else f"  => {line}")
    seconds = time.monotonic() - began
    print(f"{found.worlds} worlds, {found.transitions} steps, at most {found.deepest} from the start, {seconds:.0f} s")
    return 3 if found.story else 0


if __name__ == "__main__":
    sys.exit(main())
