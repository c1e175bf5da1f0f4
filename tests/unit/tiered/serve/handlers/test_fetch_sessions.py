"""Fetch sessions: incremental requests and responses, their errors, and the bounds of their table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from fake_source import BATCH, CALL, FakeSource, run
from hypothesis import given
from hypothesis import strategies as st

from local.errors import Unavailable
from local.names import TopicPartition
from tiered.serve.handlers.fetch import fetch
from tiered.serve.handlers.fetch_sessions import EVICTION_MS, FetchSessions, Requested
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

TOPICS = ("a", "b", "c", "d")
Found = list[tuple[Requested, PartitionData]]


def asked(
    session_id: int = 0,
    epoch: int = 0,
    partitions: dict[str, int] | None = None,
    forgotten: Sequence[str] = (),
    **changes: object,
) -> FetchRequest:
    """A fetch of partition 0 of topics, each from an offset."""
    topics = tuple(
        FetchTopic(topic=topic, partitions=(FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=10**6),))
        for topic, at in (partitions or {}).items()
    )
    return FetchRequest(
        **{  # type: ignore[arg-type]
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 10**6,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": topics,
            "forgotten_topics_data": tuple(ForgottenTopic(topic=each, partitions=(0,)) for each in forgotten),
            **changes,
        }
    )


def opened(sessions: FetchSessions, request: FetchRequest, now_ms: float = 0.0, *, ids: bool = False) -> FetchResponse:
    """The response if every partition has the high watermark 5 and no records."""
    found = sessions.open(request, uses_topic_ids=ids, now_ms=now_ms)
    if isinstance(found, Error):
        return FetchResponse(error_code=found)
    data = [(each, PartitionData(partition_index=0, high_watermark=5, log_start_offset=0)) for each in found.requested]
    return found.response(data)


def named(response: FetchResponse) -> list[str | None]:
    assert response.error_code is Error.NONE
    return [each.topic for each in response.responses]


def begun(sessions: FetchSessions, *topics: str, now_ms: float = 0.0) -> int:
    response = opened(sessions, asked(partitions=dict.fromkeys(topics, 0)), now_ms)
    assert named(response) == list(topics)
    return response.session_id


def test_a_session_names_only_what_changed() -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a", "b")
    assert named(opened(sessions, asked(session, 1))) == []
    assert named(opened(sessions, asked(session, 2, {"c": 0}))) == ["c"], "an added partition has news"
    assert named(opened(sessions, asked(session, 3, forgotten=["a", "never"]))) == []
    found = sessions.open(asked(session, 4, {"b": 9}), uses_topic_ids=False, now_ms=0)
    assert not isinstance(found, Error)
    assert [(each.topic, each.fetch.fetch_offset) for each in found.requested] == [("b", 9), ("c", 0)]
    assert (len(sessions), sessions.partition_count) == (1, 2)


def test_requests_that_fit_no_session_are_refused() -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a")
    for request, ids, error in (
        (asked(session + 1, 1), False, Error.FETCH_SESSION_ID_NOT_FOUND),
        (asked(0, 1), False, Error.FETCH_SESSION_ID_NOT_FOUND),
        (asked(-7, -7), False, Error.FETCH_SESSION_ID_NOT_FOUND),
        (asked(session, 2), False, Error.INVALID_FETCH_SESSION_EPOCH),
        (asked(session, 1), True, Error.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        response = opened(sessions, request, ids=ids)
        assert (response.error_code, response.session_id, response.responses) == (error, 0, ())
    assert named(opened(sessions, asked(session, 1))) == [], "a refused request changes nothing"


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a")
    response = opened(sessions, asked(session, epoch, {"b": 0}))
    assert named(response) == ["b"]
    assert (response.session_id == 0) == (epoch == -1)
    assert opened(sessions, asked(session, 1)).error_code is Error.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == sessions.partition_count == epoch + 1


def test_a_session_without_partitions_ends() -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a")
    response = opened(sessions, asked(session, 1, forgotten=["a"]))
    assert (response.session_id, response.responses) == (0, ())
    assert len(sessions) == sessions.partition_count == 0


def test_the_epoch_after_the_largest_is_one() -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a")
    sessions._sessions[session].epoch = 2**31 - 1
    assert named(opened(sessions, asked(session, 2**31 - 1))) == []
    assert named(opened(sessions, asked(session, 1))) == []


def test_a_request_that_another_one_overtook_is_refused() -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a", "b")
    slow = sessions.open(asked(session, 1), uses_topic_ids=False, now_ms=0)
    opened(sessions, asked(session, 2, forgotten=["a"]))
    assert not isinstance(slow, Error)
    data = PartitionData(partition_index=0, high_watermark=6)
    response = slow.response([(each, data) for each in slow.requested])
    assert (response.error_code, response.session_id) == (Error.INVALID_FETCH_SESSION_EPOCH, session)


@pytest.mark.parametrize(
    ("data", "is_sent"),
    [
        (PartitionData(partition_index=0, high_watermark=5, log_start_offset=0), False),
        (PartitionData(partition_index=0, high_watermark=6, log_start_offset=0), True),
        (PartitionData(partition_index=0, high_watermark=5, log_start_offset=1), True),
        (PartitionData(partition_index=0, high_watermark=5, log_start_offset=0, records=(b"run",)), True),
        (PartitionData(partition_index=0, error_code=Error.OFFSET_OUT_OF_RANGE), True),
        (PartitionData(partition_index=0), False),
    ],
)
def test_a_partition_is_sent_if_it_has_news(data: PartitionData, is_sent: bool) -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a")
    found = sessions.open(asked(session, 1), uses_topic_ids=False, now_ms=0)
    assert not isinstance(found, Error)
    assert bool(found.response([(found.requested[0], data)]).responses) is is_sent
    again = named(opened(sessions, asked(session, 2)))
    is_changed = data.error_code is not Error.NONE or (data.high_watermark, data.log_start_offset) not in (
        (5, 0),
        (-1, -1),
    )
    assert again == (["a"] if is_changed else []), "after an error, or with the earlier offsets again"


def test_partitions_take_turns() -> None:
    sessions = FetchSessions()
    session = begun(sessions, "a", "b", "c")
    found = sessions.open(asked(session, 1), uses_topic_ids=False, now_ms=0)
    assert not isinstance(found, Error)
    full, empty = (
        PartitionData(partition_index=0, high_watermark=5, log_start_offset=0, records=r) for r in ((b"x",), ())
    )
    found.response([(each, full if each.topic in ("a", "b") else empty) for each in found.requested])
    found = sessions.open(asked(session, 2), uses_topic_ids=False, now_ms=0)
    assert not isinstance(found, Error)
    assert [each.topic for each in found.requested] == ["c", "a", "b"]


def test_topics_by_id_are_answered_by_id() -> None:
    sessions, topic_id = FetchSessions(), UUID(int=9)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = (FetchTopic(topic_id=topic_id, partitions=(partition,)),)
    first = opened(sessions, asked(topics=topics), ids=True)
    assert [(each.topic, each.topic_id) for each in first.responses] == [(None, topic_id)]
    gone = (ForgottenTopic(topic_id=topic_id, partitions=(0,)),)
    assert opened(sessions, asked(first.session_id, 1, forgotten_topics_data=gone), ids=True).session_id == 0


def test_a_full_table_gives_no_session_until_one_is_old() -> None:
    sessions = FetchSessions(slots_max=2)
    first, second = begun(sessions, "a"), begun(sessions, "a", "b", now_ms=1000)
    assert begun(sessions, "a", "b", "c", now_ms=EVICTION_MS) == 0
    named(opened(sessions, asked(first, 1), EVICTION_MS))
    third = begun(sessions, "c", now_ms=1001 + EVICTION_MS)
    assert third, "the second was not used for long enough"
    assert opened(sessions, asked(second, 1)).error_code is Error.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count, sessions.evicted) == (2, 2, 1)


def test_an_old_session_in_use_yields_to_a_larger_one_only() -> None:
    sessions = FetchSessions(slots_max=1)
    first = begun(sessions, "a", "b")
    now_ms = EVICTION_MS + 1
    named(opened(sessions, asked(first, 1), now_ms))
    assert begun(sessions, "a", "b", now_ms=now_ms) == 0
    assert begun(sessions, "a", "b", "c", now_ms=now_ms) != 0
    assert opened(sessions, asked(first, 2), now_ms).error_code is Error.FETCH_SESSION_ID_NOT_FOUND


def test_a_table_without_slots_gives_no_sessions() -> None:
    assert begun(FetchSessions(slots_max=0), "a") == 0


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    sessions = FetchSessions(partitions_max=3)
    session = begun(sessions, "a", "b")
    assert begun(sessions, "a", "b") == 0
    response = opened(sessions, asked(session, 1, {"c": 0, "d": 0}))
    assert response.error_code is Error.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == sessions.partition_count == 0


def test_ids_in_use_are_not_given_again() -> None:
    numbers = iter([7, 7, 7, 8])
    sessions = FetchSessions(draw=lambda first, last: next(numbers))
    assert [begun(sessions, "a"), begun(sessions, "a")] == [7, 8]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["extend", "seek", "forget", "add", "raise", "fail", "heal"]),
        st.sampled_from(TOPICS),
        st.integers(1, 3),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_client_with_a_session_knows_what_one_without_knows(steps: list[tuple[str, str, int]]) -> None:
    """A client applies changes only; after each response it knows every offset that a full fetch returns."""
    source = FakeSource(**dict.fromkeys(TOPICS, 4))
    wanted, known = dict.fromkeys(TOPICS, 0), dict[str, tuple[int, int, Error]]()
    records: dict[str, int] = {}

    async def work(service: Service) -> None:
        session, epoch = 0, 0
        sent: dict[str, int] = {}
        for what, topic, count in [("", "a", 0), *steps]:
            _change(source, wanted, what, topic, count)
            changed = {each: at for each, at in wanted.items() if sent.get(each) != at}
            forgotten = [each for each in sent if each not in wanted]
            response = await fetch(service, asked(session, epoch, changed, forgotten), CALL_BY_NAME)
            assert response.error_code is Error.NONE
            session, epoch = response.session_id, epoch + 1 if response.session_id else 0
            sent = dict(wanted) if session else {}
            for each in forgotten:
                known.pop(each, None)
            _learn(known, records, response)
            full = await fetch(service, asked(0, -1, wanted), CALL_BY_NAME)
            expected: dict[str, tuple[int, int, Error]] = {}
            all_records: dict[str, int] = {}
            _learn(expected, all_records, full)
            assert known == expected
            assert {each: records.get(each, 0) for each in wanted} == {
                each: all_records.get(each, 0) for each in wanted
            }

    run(source, work)


CALL_BY_NAME = type(CALL)(version=12, endpoint=CALL.endpoint)


def _change(source: FakeSource, wanted: dict[str, int], what: str, topic: str, count: int) -> None:
    name = TopicPartition(topic, 0)
    match what:
        case "extend":
            source.extend(name, count)
        case "seek":
            if topic in wanted:
                wanted[topic] = source.counts[name]
        case "forget":
            wanted.pop(topic, None)
        case "add":
            wanted.setdefault(topic, source.starts.get(name, 0))
        case "raise":
            source.starts[name] = min(source.counts[name], source.starts.get(name, 0) + count)
        case "fail":
            source.errors[name] = Unavailable("the store is down")
        case "heal":
            source.errors.pop(name, None)


def _learn(known: dict[str, tuple[int, int, Error]], records: dict[str, int], response: FetchResponse) -> None:
    records.clear()
    for topic in response.responses:
        assert topic.topic is not None
        (data,) = topic.partitions
        known[topic.topic] = data.high_watermark, data.log_start_offset, data.error_code
        records[topic.topic] = sum(len(bytes(run)) // BATCH for run in data.records)


def test_the_handler_waits_for_news_of_the_whole_session() -> None:
    source = FakeSource(a=1, b=1)

    async def work(service: Service) -> list[str | None]:
        first = await fetch(service, asked(partitions={"a": 1, "b": 1}), CALL_BY_NAME)
        waiting = asyncio.create_task(fetch(service, asked(first.session_id, 1, max_wait_ms=60_000), CALL_BY_NAME))
        while len(source.reads) < 4:
            await asyncio.sleep(0)
        assert not waiting.done()
        source.extend(TopicPartition("b", 0), 1)
        return named(await waiting)

    assert run(source, work) == ["b"]


@pytest.mark.parametrize("name", ["x" * 250, "\N{GRINNING FACE}"])
def test_a_name_that_no_topic_can_have_is_in_no_session(name: str) -> None:
    sessions = FetchSessions()
    found = opened(sessions, asked(partitions={"a": 0, name: 0}))
    assert (named(found), found.session_id, len(sessions)) == (["a", name], 0, 0)
    session = begun(sessions, "a", "x" * 249)
    found = opened(sessions, asked(session, 1, {name: 0}))
    assert (found.error_code, len(sessions), sessions.partition_count) == (Error.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
