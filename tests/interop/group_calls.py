"""One script of group requests, in every version, for two servers whose responses must be equal.

Requests are written and responses read by `kio`. Each request has a connection of its own, so that one may wait.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import re
import socket
import struct
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

FIND, JOIN, SYNC, BEAT, LEAVE, COMMIT, FETCH, DELETE_OFFSETS = 10, 11, 14, 12, 13, 8, 9, 47
LIST, DESCRIBE, DELETE = 16, 15, 42
SECONDS_MAX = 60
MEMBERS_MAX = 4  # group.max.size of both servers
METADATA_BYTES_MAX = 100  # offset.metadata.max.bytes of both servers
TOPIC = "orders"  # it exists with one partition
MS = datetime.timedelta(milliseconds=1)
_MEMBER_ID = re.compile(r"[\w-]*?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def build(schema: type, values: dict[str, Any]) -> Any:
    """A `kio` message of plain values; what is missing has its default, or zero."""
    found = {}
    for each in dataclasses.fields(schema):
        if each.name in values:
            found[each.name] = _converted(each, values[each.name])
        elif each.default is dataclasses.MISSING:
            found[each.name] = _zero(each)
    return schema(**found)


def _item(field: Any) -> tuple[Any, bool, bool]:
    hint, is_nullable = field.type, False
    if get_origin(hint) in (Union, types.UnionType):
        is_nullable = True
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    is_array = get_origin(hint) is tuple
    return (get_args(hint)[0] if is_array else hint), is_array, is_nullable


def _converted(field: Any, value: Any) -> Any:
    item, is_array, _ = _item(field)
    if is_array and value is not None:
        return tuple(build(item, each) if dataclasses.is_dataclass(item) else each for each in value)
    return value * MS if str(field.metadata.get("kafka_type")).startswith("timedelta") else value


def _zero(field: Any) -> Any:
    _, is_array, is_nullable = _item(field)
    kind = field.metadata.get("kafka_type")
    zeros = {"string": "", "bytes": b"", "bool": False, "uuid": UUID(int=0)}
    if str(kind).startswith("timedelta"):
        return 0 * MS
    return () if is_array else None if is_nullable else zeros.get(kind, 0)


class Server:
    """Requests to one address."""

    def __init__(self, address: str, pool: ThreadPoolExecutor) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._pool = (host, int(port)), pool

    def start(self, key: int, version: int, /, **values: Any) -> Future[Any]:
        """Send a request now; its response is a future."""
        request = build(load_request_schema(key, version), values)
        head_schema = type(request).__header_schema__
        head = head_schema(request_api_key=key, request_api_version=version, correlation_id=77, client_id="tester")
        buffer = io.BytesIO()
        entity_writer(head_schema)(buffer, head)
        entity_writer(type(request))(buffer, request)
        data = buffer.getvalue()
        client = socket.create_connection(self._address, timeout=SECONDS_MAX)
        client.sendall(struct.pack(">i", len(data)) + data)
        return self._pool.submit(_received, client, key, version)

    def call(self, key: int, version: int, /, **values: Any) -> Any:
        return self.start(key, version, **values).result(SECONDS_MAX)


def _received(client: socket.socket, key: int, version: int) -> Any:
    with client:
        (length,) = struct.unpack(">i", _exactly(client, 4))
        data = _exactly(client, length)
    schema = load_response_schema(key, version)
    _, size = entity_reader(schema.__header_schema__)(data, 0)
    found, _ = entity_reader(schema)(data, size)
    return found


def _exactly(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = client.recv(length - len(data))
        assert piece, "the server closed the connection"
        data += piece
    return data


class Recorder:
    """Runs a script and records its responses as plain values, with member ids and addresses made comparable."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.seen: list[tuple[str, Any]] = []
        self._ids: dict[str, str] = {}

    def call(self, label: str, key: int, version: int, /, **values: Any) -> Any:
        return self.record(f"{label} v{version}", self.server.call(key, version, **values))

    def record(self, label: str, response: Any) -> Any:
        self.seen.append((label, self._plain(response)))
        return response

    def _plain(self, value: Any) -> Any:
        match value:
            case datetime.timedelta():
                return value // MS
            case str():
                return _MEMBER_ID.sub(self._known, value)
            case tuple() | list():
                return sorted((self._plain(each) for each in value), key=_order)
            case _ if dataclasses.is_dataclass(value):
                named = {each.name: self._plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
                return {name: _comparable(name, each, named) for name, each in named.items()}
        return value

    def _known(self, found: re.Match[str]) -> str:
        prefix = found[0][:-36]
        return self._ids.setdefault(found[0], f"{prefix}member {len(self._ids)}")


def _comparable(name: str, value: Any, fields: dict[str, Any]) -> Any:
    """Without the address, and without the text of an error."""
    if name in ("host", "port", "node_id") and value not in ("", -1):
        return "address"
    return None if name == "error_message" and fields["error_code"].value else value


def _order(item: Any) -> str:
    """Kafka's order of groups, members and partitions is that of a hash map."""
    names = ("group_id", "member_id", "partition_index")
    return str([item.get(each) for each in names]) if isinstance(item, dict) else ""


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


PROTOCOLS = [
    {"name": "range", "metadata": subscription(TOPIC)},
    {"name": "roundrobin", "metadata": subscription(TOPIC)},
]


def joining(group: str, member: str = "", **more: Any) -> dict[str, Any]:
    fields = {
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
    }
    return {"group_id": group, "member_id": member, **fields, **more}


def run(server: Server) -> list[tuple[str, Any]]:
    recorder = Recorder(server)
    for script in SCRIPTS:
        script(recorder)
    return recorder.seen


def _coordinators(to: Recorder) -> None:
    for version in range(7):
        names = {"coordinator_keys": ["one", "two"]} if version >= 4 else {"key": "one"}
        to.call("find a group", FIND, version, **names)
    to.call("find an unknown type", FIND, 3, key="one", key_type=9)
    to.call("find an unknown type", FIND, 4, coordinator_keys=["one"], key_type=9)


def join(to: Recorder, group: str, version: int = 9, **more: Any) -> Any:
    """A member that is the only one of its group."""
    found = to.call("join", JOIN, version, **joining(group, **more))
    if version >= 4 and "group_instance_id" not in more:
        found = to.call("join with the id", JOIN, version, **joining(group, found.member_id, **more))
    return found


def sync(to: Recorder, group: str, joined: Any, version: int = 5, **more: Any) -> Any:
    return to.call("sync", SYNC, version, **syncing(group, joined, **more))


def syncing(group: str, joined: Any, **more: Any) -> dict[str, Any]:
    fields = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    named = {"protocol_type": "consumer", "protocol_name": joined.protocol_name}
    given = [{"member_id": each.member_id, "assignment": b"of " + each.metadata[-6:]} for each in joined.members]
    return {**fields, **named, "assignments": given, **more}


def beating(group: str, joined: Any, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id, **more}


def leaving(group: str, version: int, member: str, **more: Any) -> dict[str, Any]:
    one = {"member_id": member, **more}
    return {"group_id": group, "members": [one]} if version >= 3 else {"group_id": group, **one}


def committing(group: str, offset: int, member: str = "", generation: int = -1, **more: Any) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_metadata": "note",
        "committed_leader_epoch": 0,
    }
    topics = [{"name": TOPIC, "partitions": [partition | more]}]
    fields = {"group_id": group, "member_id": member, "generation_id_or_member_epoch": generation}
    return {**fields, "retention_time": -1, "topics": topics}


def fetching(version: int, group: str, topics: Any = "one", **more: Any) -> dict[str, Any]:
    wanted = [{"name": TOPIC, "partition_indexes": [0, 7]}] if topics == "one" else topics
    if version < 8:
        return {"group_id": group, "topics": wanted, **more}
    return {"groups": [{"group_id": group, "topics": wanted}], **more}


def _every_version(to: Recorder) -> None:
    """The life of a group with one member, in each version of its requests."""
    for version in range(10):
        group = f"version-{version}"
        joined = join(to, group, version)
        synced = min(version, 5)
        to.call("beat before sync", BEAT, min(version, 4), **beating(group, joined))
        sync(to, group, joined, synced)
        to.call("beat", BEAT, min(version, 4), **beating(group, joined))
        to.call("sync again", SYNC, synced, **syncing(group, joined))
        committed = max(2, min(version, 9))
        to.call("commit", COMMIT, committed, **committing(group, 5, joined.member_id, joined.generation_id))
        fetched = max(1, min(version, 9))
        to.call("fetch", FETCH, fetched, **fetching(fetched, group))
        if fetched >= 2:
            to.call("fetch all", FETCH, fetched, **fetching(fetched, group, None))
        to.call("fetch of none", FETCH, fetched, **fetching(fetched, f"{group}-none"))
        described = min(version, 6)
        to.call("describe", DESCRIBE, described, groups=[group, f"{group}-none"])
        to.call("leave", LEAVE, min(version, 5), **leaving(group, min(version, 5), joined.member_id))
        to.call("describe the empty group", DESCRIBE, described, groups=[group])
        to.call("delete", DELETE, min(version, 2), groups_names=[group, f"{group}-none"])


def _errors(to: Recorder) -> None:
    group = "errors"
    to.call("no group id", JOIN, 9, **joining(""))
    to.call("a short session", JOIN, 9, **joining(group, session_timeout=1))
    to.call("a long session", JOIN, 9, **joining(group, session_timeout=2**31 - 1))
    to.call("no protocols", JOIN, 9, **joining(group, protocols=[]))
    to.call("no protocol type", JOIN, 9, **joining(group, protocol_type=""))
    to.call("an unknown member of no group", JOIN, 9, **joining(f"{group}-none", "nobody"))
    joined = join(to, group)
    sync(to, group, joined, generation_id=7)
    sync(to, group, joined, protocol_name="other")
    sync(to, group, joined, protocol_name=None)
    sync(to, group, joined, member_id="nobody")
    sync(to, "none", joined)
    sync(to, "", joined)
    sync(to, group, joined)
    to.call("an unknown member", JOIN, 9, **joining(group, "nobody"))
    to.call("other protocols", JOIN, 9, **joining(group, protocols=[{"name": "own", "metadata": b""}]))
    to.call(
        "other protocols", JOIN, 9, **joining(group, joined.member_id, protocols=[{"name": "own", "metadata": b""}])
    )
    to.call("another type", JOIN, 9, **joining(group, protocol_type="connect"))
    to.call("beat of nobody", BEAT, 4, **beating(group, joined, member_id="nobody"))
    to.call("beat of another generation", BEAT, 4, **beating(group, joined, generation_id=9))
    to.call("beat in no group", BEAT, 4, **beating("none", joined))
    to.call("beat without a group", BEAT, 4, **beating("", joined))
    for version in (1, 5):
        to.call("leave of nobody", LEAVE, version, **leaving(group, version, "nobody"))
        to.call("leave no group", LEAVE, version, **leaving("none", version, "nobody"))
        to.call("leave without a group", LEAVE, version, **leaving("", version, "nobody"))
    to.call("delete a group with members", DELETE, 2, groups_names=[group, ""])
    for version in (2, 8, 9):
        call = lambda label, **values: to.call(f"commit {label}", COMMIT, version, **values)  # noqa: B023, E731
        call("of another generation", **committing(group, 1, joined.member_id, 9))
        call("of nobody", **committing(group, 1, "nobody", joined.generation_id))
        call("without a member", **committing(group, 1))
        call("in no group", **committing("none", 1, "nobody", 3))
        call(
            "with a long note",
            **committing(group, 1, joined.member_id, joined.generation_id, committed_metadata="x" * 101),
        )
        call("to another partition", **committing(group, 1, joined.member_id, joined.generation_id, partition_index=9))
        call("without a note", **committing(group, 1, joined.member_id, joined.generation_id, committed_metadata=None))
        call("without a group", **committing("", 1))
    to.call("describe", DESCRIBE, 6, groups=[group], include_authorized_operations=True)
    to.call("delete offsets of subscribed topics", DELETE_OFFSETS, 0, **deleting(group))
    to.call("delete offsets of no group", DELETE_OFFSETS, 0, **deleting("none"))
    to.call("delete offsets without a group", DELETE_OFFSETS, 0, **deleting(""))
    to.call("leave", LEAVE, 5, **leaving(group, 5, joined.member_id))
    to.call("delete offsets", DELETE_OFFSETS, 0, **deleting(group))
    to.call("fetch", FETCH, 9, **fetching(9, group))


def deleting(group: str) -> dict[str, Any]:
    known = {"name": TOPIC, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}
    return {"group_id": group, "topics": [known, {"name": "no-such-topic", "partitions": [{"partition_index": 0}]}]}


def _rebalance(to: Recorder) -> None:
    """Two members: the first leads, the second makes the group rebalance."""
    group = "rebalance"
    one = join(to, group)
    sync(to, group, one)
    two = to.call("second", JOIN, 9, **joining(group))
    waiting = to.server.start(JOIN, 9, **joining(group, two.member_id))
    until(lambda: to.server.call(BEAT, 4, **beating(group, one)).error_code.value == 27)
    to.call("beat in a rebalance", BEAT, 4, **beating(group, one))
    to.call("sync in a rebalance", SYNC, 5, **syncing(group, one))
    to.call("commit in a rebalance", COMMIT, 9, **committing(group, 3, one.member_id, one.generation_id))
    to.call("describe a rebalance", DESCRIBE, 6, groups=[group])
    to.call("list a rebalance", LIST, 5, states_filter=["PreparingRebalance"])
    again = to.call("first again", JOIN, 9, **joining(group, one.member_id))
    two = to.record("second", waiting.result(SECONDS_MAX))
    to.call("the same join again", JOIN, 9, **joining(group, one.member_id))
    to.call("the same join again", JOIN, 9, **joining(group, two.member_id))
    to.call("describe before the assignment", DESCRIBE, 6, groups=[group])
    to.call("commit before the assignment", COMMIT, 9, **committing(group, 3, one.member_id, again.generation_id))
    to.call("commit of the last generation", COMMIT, 9, **committing(group, 3, one.member_id, one.generation_id))
    waiting = to.server.start(SYNC, 5, **syncing(group, two))
    sync(to, group, again)
    to.record("sync of the second", waiting.result(SECONDS_MAX))
    to.call("a follower joins a stable group", JOIN, 9, **joining(group, two.member_id))
    to.call("describe the stable group", DESCRIBE, 6, groups=[group])
    members = [{"member_id": one.member_id}, {"member_id": "nobody"}, {"member_id": two.member_id}]
    to.call("leave together", LEAVE, 5, group_id=group, members=members)
    to.call("describe the empty group", DESCRIBE, 5, groups=[group])


def _static(to: Recorder) -> None:
    group, instance = "static", {"group_instance_id": "one"}
    first = join(to, group, **instance)
    sync(to, group, first, **instance)
    again = to.call("restart", JOIN, 9, **joining(group, **instance))
    to.call("beat of the former", BEAT, 4, **beating(group, first, **instance))
    to.call("beat", BEAT, 4, **beating(group, again, **instance))
    to.call("sync of the former", SYNC, 5, **syncing(group, first, **instance))
    to.call("sync", SYNC, 5, **syncing(group, again, **instance))
    to.call("commit of the former", COMMIT, 9, **committing(group, 1, first.member_id, 1), **instance)
    to.call("join of the former", JOIN, 9, **joining(group, first.member_id, **instance))
    older = to.call("restart of an old client", JOIN, 5, **joining(group, **instance))
    to.call("describe", DESCRIBE, 6, groups=[group])
    to.call("beat of another instance", BEAT, 4, **beating(group, older, group_instance_id="two"))
    to.call("leave of the former", LEAVE, 5, **leaving(group, 5, first.member_id, **instance))
    to.call("leave of another instance", LEAVE, 5, **leaving(group, 5, "", group_instance_id="two"))
    to.call("leave by instance", LEAVE, 5, **leaving(group, 5, "", **instance))


def _full(to: Recorder) -> None:
    """A group of at most MEMBERS_MAX members."""
    group = "full"
    waiting = []
    for at in range(MEMBERS_MAX):
        waiting.append(to.server.start(JOIN, 9, **joining(group, group_instance_id=f"i{at}")))
        if at == 0:
            first = waiting[0].result(SECONDS_MAX)
            sync(to, group, first, group_instance_id="i0")
        else:
            until(lambda count=at + 1: len(to.server.call(DESCRIBE, 5, groups=[group]).groups[0].members) == count)
    waiting.append(to.server.start(JOIN, 9, **joining(group, first.member_id, group_instance_id="i0")))
    found = [each.result(SECONDS_MAX) for each in waiting[1:]]
    to.seen.append(("members", sorted(len(each.members) for each in found)))
    to.call("one too many", JOIN, 9, **joining(group))
    to.call("one too many", JOIN, 3, **joining(group))
    to.call("leave", LEAVE, 5, group_id=group, members=[{"member_id": each.member_id} for each in found])


def _offsets(to: Recorder) -> None:
    group = "simple"
    for version in range(2, 10):
        to.call("commit", COMMIT, version, **committing(group, version))
    to.call(
        "commit of an unknown topic",
        COMMIT,
        9,
        **(committing(group, 1) | {"topics": [{"name": "none", "partitions": [{"partition_index": 0}]}]}),
    )
    for version in range(1, 10):
        to.call("fetch", FETCH, version, **fetching(version, group))
        if version >= 2:
            to.call("fetch all", FETCH, version, **fetching(version, group, None))
    to.call("fetch stable", FETCH, 7, **fetching(7, group, require_stable=True))
    to.call("fetch without a group", FETCH, 9, **fetching(9, ""))
    to.call("fetch an unknown topic", FETCH, 9, **fetching(9, group, [{"name": "none", "partition_indexes": [0]}]))
    for version in range(6):
        found = to.server.call(LIST, version)
        mine = [each for each in found.groups if each.group_id in ("simple", "static")]
        to.record(f"list v{version}", tuple(sorted(mine, key=lambda each: each.group_id)))
    for kinds in (["classic"], ["Consumer"], ["other"]):
        found = to.server.call(LIST, 5, types_filter=kinds, states_filter=["EMPTY"])
        to.record(f"list {kinds}", tuple(sorted(each.group_id for each in found.groups if each.group_id == "simple")))
    for version in range(7):
        to.call("describe", DESCRIBE, version, groups=[group, "", "none"])
    to.call("delete", DELETE, 2, groups_names=[group, group, "none", ""])
    to.call("fetch", FETCH, 9, **fetching(9, group))


def _topic_ids(to: Recorder) -> None:
    """The versions that name topics by their ids."""
    group = "by-id"
    metadata = to.server.call(3, 12, topics=[{"name": TOPIC}])
    known, unknown = metadata.topics[0].topic_id, UUID(int=99)
    for topic_id in (known, unknown):
        commit = committing(group, 4)
        commit["topics"][0]["topic_id"] = topic_id
        found = to.server.call(COMMIT, 10, **commit)
        to.record("commit by id", [each.partitions for each in found.topics])
        wanted = [{"topic_id": topic_id, "partition_indexes": [0, 9]}]
        found = to.server.call(FETCH, 10, **fetching(10, group, wanted))
        to.record("fetch by id", [each.partitions for each in found.groups[0].topics])
    found = to.server.call(FETCH, 10, **fetching(10, group, None))
    assert [each.topic_id for each in found.groups[0].topics] == [known]
    to.record("fetch all by id", found.groups[0].topics[0].partitions)


SCRIPTS: tuple[Callable[[Recorder], None], ...] = (
    _coordinators,
    _every_version,
    _errors,
    _rebalance,
    _static,
    _full,
    _offsets,
    _topic_ids,
)


def wait_until_loaded(server: Server) -> None:
    """A node answers before it has read its groups; a join before that is an error without a member id."""
    until(lambda: not server.call(LIST, 0).error_code.value)


def until(claim: Callable[[], bool]) -> None:
    due = datetime.datetime.now() + datetime.timedelta(seconds=SECONDS_MAX)
    while not claim():
        assert datetime.datetime.now() < due, "not reached"


def differences(ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]]) -> Iterator[str]:
    for (label, one), (other_label, other) in zip(ours, theirs, strict=False):
        assert label == other_label, (label, other_label)
        if one != other:
            yield f"{label}\n  ours:   {one}\n  kafka's: {other}"
    if len(ours) != len(theirs):
        yield f"{len(ours)} responses, kafka's are {len(theirs)}"
