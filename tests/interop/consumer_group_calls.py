"""One script of requests of the consumer protocol (KIP-848), for two servers whose responses must be equal.

Topic ids of a server are replaced by names. Nothing depends on the order in which a server assigns to equal members.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import group_calls as calls

BEAT, DESCRIBE = 68, 69
METADATA, CREATE = 3, 19
TWO, SIX = "two", "six"  # topics by their numbers of partitions
TOPICS = {TWO: 2, SIX: 6}
JOINS = {"member_epoch": 0, "rebalance_timeout": 300_000, "topic_partitions": ()}
DRAWS = 12
MEMBERS_MAX = 4  # group.consumer.max.size of both servers


class Recorder(calls.Recorder):
    """`ids` are the topic ids of the server."""

    def __init__(self, server: calls.Server, ids: dict[str, UUID]) -> None:
        super().__init__(server)
        self.ids = ids
        self._names = {each: name for name, each in ids.items()}

    def _plain(self, value: Any) -> Any:
        match value:
            case UUID():
                return self._names.get(value, "unknown id")
            case tuple() | list():
                return sorted((self._plain(each) for each in value), key=str)
        return super()._plain(value)

    def beat(self, label: str, group: str, version: int = 1, /, **values: Any) -> Any:
        found = self.call(label, BEAT, version, group_id=group, **values)
        self.seen.append((f"message of {label}", found.error_message))
        return found

    def join(self, label: str, group: str, member: str, topics: Any = (SIX,), /, **values: Any) -> Any:
        given = {**JOINS, "member_id": member, "subscribed_topic_names": topics, **values}
        return self.beat(label, group, **given)

    def describe(self, label: str, group: str) -> Any:
        return self.call(label, DESCRIBE, 1, group_ids=[group])

    def owned(self, response: Any) -> list[dict[str, Any]]:
        """The assignment of a response, as the owned partitions of a request."""
        found = response.assignment.topic_partitions
        return [{"topic_id": each.topic_id, "partitions": each.partitions} for each in found]


def run(server: calls.Server, ids: dict[str, UUID]) -> list[tuple[str, Any]]:
    recorder = Recorder(server, ids)
    for script in SCRIPTS:
        script(recorder)
    return recorder.seen


def _life(to: Recorder) -> None:
    """Join, steady, fenced, leave, of the only member."""
    group, version = "life", 0
    first = to.join("join", group, "one")
    owned = to.owned(first)
    steady = {"member_id": "one", "member_epoch": first.member_epoch}
    to.beat("steady", group, **steady)
    to.beat("steady", group, version, **steady)
    to.beat("full", group, **steady, rebalance_timeout=300_000, subscribed_topic_names=[SIX], topic_partitions=owned)
    to.describe("describe", group)
    to.call("describe in version 0", DESCRIBE, 0, group_ids=[group, "none", ""], include_authorized_operations=True)
    to.join("join again", group, "one")
    to.beat("greater epoch", group, member_id="one", member_epoch=first.member_epoch + 1)
    to.beat("unknown member", group, member_id="nobody", member_epoch=1)
    to.beat("unknown group", "none", member_id="one", member_epoch=1)
    second = to.beat("another subscription", group, **steady, subscribed_topic_names=[SIX, TWO], topic_partitions=owned)
    to.beat("the epoch before, owning less", group, **steady, topic_partitions=[])
    to.beat("the epoch before, without partitions", group, **steady)
    more = [{"topic_id": to.ids[TWO], "partitions": [7]}]
    to.beat("the epoch before, owning more", group, **steady, topic_partitions=more)
    third = to.beat(
        "fewer topics", group, member_id="one", member_epoch=second.member_epoch, subscribed_topic_names=[TWO]
    )
    to.describe("describe while it revokes", group)
    to.beat("still revokes", group, member_id="one", member_epoch=third.member_epoch, topic_partitions=owned)
    to.beat("silent", group, member_id="one", member_epoch=third.member_epoch)
    left = [{"topic_id": to.ids[TWO], "partitions": [0, 1]}]
    last = to.beat("has revoked", group, member_id="one", member_epoch=third.member_epoch, topic_partitions=left)
    to.beat("first epoch", group, member_id="one", member_epoch=1)
    to.join("join with an old epoch", group, "one")
    to.beat("leave of nobody", group, member_id="nobody", member_epoch=-1)
    to.beat("leave no group", "none", member_id="one", member_epoch=-1)
    to.beat("leave for now without an instance", group, member_id="one", member_epoch=-2)
    to.beat("leave", group, member_id="one", member_epoch=-1)
    to.beat("steady after it left", group, member_id="one", member_epoch=last.member_epoch)
    to.describe("describe the empty group", group)
    to.join("join the empty group", group, "two", [])
    to.join("without topics", "nothing", "one", [])
    to.join("a topic that does not exist", "missing", "one", ["missing"])
    to.describe("describe it", "missing")


def _invalid(to: Recorder) -> None:
    group = "invalid"
    for version in (0, 1):
        for label, values in (
            ("no member id", {**JOINS, "subscribed_topic_names": [TWO], "rebalance_timeout": -1}),
            ("blank instance", {**JOINS, "member_id": "m", "instance_id": " "}),
            ("blank rack", {**JOINS, "member_id": "m", "rack_id": ""}),
            ("no timeout", {**JOINS, "member_id": "m", "rebalance_timeout": -1}),
            ("null partitions", {**JOINS, "member_id": "m", "topic_partitions": None}),
            (
                "partitions",
                {**JOINS, "member_id": "m", "topic_partitions": [{"topic_id": UUID(int=1), "partitions": [1]}]},
            ),
            ("no subscription", {**JOINS, "member_id": "m", "subscribed_topic_names": None}),
            ("epoch -2 without an instance", {"member_id": "m", "member_epoch": -2}),
            ("epoch -3", {"member_id": "m", "member_epoch": -3}),
            ("epoch -1 without a member id", {"member_epoch": -1}),
            ("epoch 1 without a member id", {"member_epoch": 1}),
            ("assignor", {**JOINS, "member_id": "m", "subscribed_topic_names": [TWO], "server_assignor": "own"}),
        ):
            to.beat(label, group, version, **values)
    to.beat("no group", "", **JOINS, member_id="m", subscribed_topic_names=[TWO])
    for pattern in ("(", "[a", "a**", "(?<=a)b", "\\q"):
        found = to.server.call(
            BEAT, 1, **JOINS, group_id=group, member_id="m", subscribed_topic_names=None, subscribed_topic_regex=pattern
        )
        to.record(f"regex {pattern}", (found.error_code, found.error_message.split(":")[0], found.member_epoch))
    to.describe("nothing was created", group)


def _rebalance(to: Recorder) -> None:
    """A second member: the first revokes half, the second waits for it."""
    group = "rebalance"
    one = to.join("first", group, "one")
    two = to.join("second", group, "two")
    to.describe("describe", group)
    beat = {"member_id": "one", "member_epoch": one.member_epoch}
    revoking = to.beat("first revokes", group, **beat, topic_partitions=to.owned(one))
    to.beat("second waits", group, member_id="two", member_epoch=two.member_epoch, topic_partitions=[])
    to.beat("first has not revoked", group, **beat, topic_partitions=to.owned(one))
    to.describe("describe while it revokes", group)
    moved = to.beat("first has revoked", group, **beat, topic_partitions=to.owned(revoking))
    gets = to.beat("second gets them", group, member_id="two", member_epoch=two.member_epoch, topic_partitions=[])
    to.describe("describe the stable group", group)
    to.call("list", calls.LIST, 5, types_filter=["consumer"], states_filter=["stable"])
    commit = lambda label, version, member, epoch: to.call(  # noqa: E731
        label,
        calls.COMMIT,
        version,
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[{"name": SIX, "partitions": [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]}],
    )
    for version in (8, 9):
        commit("commit", version, "one", moved.member_epoch)
        commit("stale commit", version, "one", moved.member_epoch - 1)
        commit("greater commit", version, "one", moved.member_epoch + 1)
        commit("commit of nobody", version, "nobody", moved.member_epoch)
        commit("commit without a member", version, "", -1)
        fetch = {"group_id": group, "topics": [{"name": SIX, "partition_indexes": [0, 1]}]}
        for member, epoch in (("one", moved.member_epoch), ("one", 1), ("nobody", 1), (None, -1)):
            asked = fetch if version < 9 else {**fetch, "member_id": member, "member_epoch": epoch}
            to.call(f"fetch of {member}", calls.FETCH, version, groups=[asked])
    for version in (5, 6):
        to.call("describe as a classic group", calls.DESCRIBE, version, groups=[group])
    to.call("classic heartbeat", calls.BEAT, 4, group_id=group, member_id="one", generation_id=1)
    to.call("classic sync", calls.SYNC, 5, group_id=group, member_id="one", protocol_type="consumer", protocol_name="r")
    to.call("classic leave", calls.LEAVE, 5, group_id=group, members=[{"member_id": "nobody"}])
    to.call("delete", calls.DELETE, 2, groups_names=[group])
    to.call("delete offsets", calls.DELETE_OFFSETS, 0, **calls.deleting(group))
    to.beat("second leaves", group, member_id="two", member_epoch=-1)
    to.describe("describe after it left", group)
    to.beat(
        "first takes over", group, member_id="one", member_epoch=moved.member_epoch, topic_partitions=to.owned(revoking)
    )
    to.beat("second again", group, member_id="two", member_epoch=gets.member_epoch)
    members = [{"member_id": "one"}, {"member_id": "", "group_instance_id": "i"}]
    to.call("removed by an administrator", calls.LEAVE, 5, group_id=group, members=members)
    to.describe("describe the empty group", group)


def _static(to: Recorder) -> None:
    group = "static"
    one = to.join("first", group, "one", instance_id="i")
    to.join("unreleased", group, "two", instance_id="i")
    to.join("unreleased to itself", group, "one", instance_id="i")
    to.beat("steady", group, member_id="one", member_epoch=one.member_epoch, instance_id="i")
    to.beat("fenced", group, member_id="two", member_epoch=one.member_epoch, instance_id="i")
    to.beat("another instance", group, member_id="one", member_epoch=one.member_epoch, instance_id="j")
    to.beat("fenced leave", group, member_id="two", member_epoch=-2, instance_id="i")
    to.beat("leave for now", group, member_id="one", member_epoch=-2, instance_id="i")
    to.describe("describe what left", group)
    to.beat("steady after it left", group, member_id="one", member_epoch=one.member_epoch, instance_id="i")
    two = to.join("successor", group, "two", instance_id="i")
    to.describe("describe the successor", group)
    to.beat("former", group, member_id="one", member_epoch=one.member_epoch, instance_id="i")
    to.beat("leave of another instance", group, member_id="two", member_epoch=-1, instance_id="j")
    to.beat("steady", group, member_id="two", member_epoch=two.member_epoch, instance_id="i")
    leave = [{"member_id": "", "group_instance_id": "i"}, {"member_id": "", "group_instance_id": "j"}]
    to.call("removed by an administrator", calls.LEAVE, 5, group_id=group, members=leave)
    to.describe("describe the empty group", group)


def _full(to: Recorder) -> None:
    for at in range(MEMBERS_MAX):
        to.join(f"member {at}", "full", f"m{at}", [TWO])
    to.join("one too many", "full", "another", [TWO])


def _range(to: Recorder) -> None:
    """Members of the range assignor, each in its final place after the others have revoked."""
    group, members = "range", ("c", "a", "b")
    for name in members:
        to.join(f"join {name}", group, name, [SIX, TWO], server_assignor="range")
    to.describe("describe", group)
    for _ in range(2):
        for name in members:
            epoch = next(
                each.member_epoch
                for each in to.server.call(DESCRIBE, 0, group_ids=[group]).groups[0].members
                if each.member_id == name
            )
            to.beat(f"{name} has nothing", group, member_id=name, member_epoch=epoch, topic_partitions=[])
    to.describe("describe the result", group)


def _drawn_range(to: Recorder) -> None:
    """The targets of drawn members are equal."""
    for seed in range(DRAWS):
        group = f"drawn-range-{seed}"
        _join_drawn(to, group, random.Random(seed), "range")
        to.describe("describe", group)


def _drawn_uniform(to: Recorder) -> None:
    """The targets of drawn members are as balanced, and a member that joins takes as many partitions from others."""
    for seed in range(DRAWS):
        group = f"drawn-uniform-{seed}"
        _join_drawn(to, group, random.Random(seed), "uniform")
        members = to.server.call(DESCRIBE, 1, group_ids=[group]).groups[0].members
        sizes = [sum(len(each.partitions) for each in one.target_assignment.topic_partitions) for one in members]
        to.record(f"sizes {seed}", tuple(sizes))


def _join_drawn(to: Recorder, group: str, draw: random.Random, assignor: str) -> None:
    for at in range(draw.randint(2, MEMBERS_MAX)):
        topics = draw.choice([[SIX], [TWO], [SIX, TWO], [SIX, TWO]])
        named = {"instance_id": f"i{draw.randint(0, 99)}-{at}"} if draw.random() < 0.5 else {}
        member = f"{draw.choice('abcXYZ')}{at}"
        to.join(f"{group} {at}", group, member, topics, server_assignor=assignor, **named)


def _regex(to: Recorder) -> None:
    group = "regex"
    join = {**JOINS, "member_id": "one", "subscribed_topic_names": [], "subscribed_topic_regex": "s.x|nope"}
    first = to.beat("join", group, **join)
    calls.until(lambda: to.server.call(DESCRIBE, 1, group_ids=[group]).groups[0].group_epoch == 2)
    to.beat("steady", group, member_id="one", member_epoch=first.member_epoch, topic_partitions=[])
    to.describe("describe", group)


def _conversion(to: Recorder) -> None:
    """Empty groups change their protocol."""
    group = "both"
    joined = calls.join(to, group)
    to.call("leave", calls.LEAVE, 5, **calls.leaving(group, 5, joined.member_id))
    to.join("a consumer joins", group, "one", [TWO])
    to.describe("describe", group)
    to.beat("leave", group, member_id="one", member_epoch=-1)
    calls.join(to, group)
    group = "classic"
    calls.join(to, group)
    to.describe("describe a classic group", group)
    to.beat("heartbeat in a classic group", group, member_id="one", member_epoch=1)
    to.beat("leave a classic group", group, member_id="one", member_epoch=-1)
    to.call("delete", calls.DELETE, 2, groups_names=["life", "static", "none"])
    to.join("join again", "static", "one", [TWO])


SCRIPTS: tuple[Callable[[Recorder], None], ...] = (
    _life,
    _invalid,
    _rebalance,
    _static,
    _full,
    _range,
    _drawn_range,
    _drawn_uniform,
    _regex,
    _conversion,
)
