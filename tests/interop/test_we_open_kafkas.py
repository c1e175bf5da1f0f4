"""Directories written by a real broker, stopped in order or killed: opened, recovered and read by us."""

import pytest
from written_by_kafka import TOPICS

from local.isolation import Isolation

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("topic", TOPICS)
def test_every_record_is_read_as_kafkas_clients_read_it(opened, topic):
    found, logs = opened
    assert list(logs[topic].records(logs[topic].log_start_offset)) == found.records[topic]


# Producer state is not yet made again from a directory, so an open transaction of before is not known.
UNDECIDED = pytest.param("transactions", marks=pytest.mark.xfail(reason="the last stable offset is the log end"))


@pytest.mark.parametrize("topic", [*(topic for topic in TOPICS if topic != "transactions"), UNDECIDED])
def test_a_committed_read_is_what_kafkas_clients_are_given(opened, topic):
    found, logs = opened
    log = logs[topic]
    assert log.last_stable_offset == found.stable[topic]
    assert list(log.records(log.log_start_offset, isolation=Isolation.READ_COMMITTED)) == found.committed[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_log_starts_and_ends_where_the_broker_says(opened, topic):
    found, logs = opened
    assert (logs[topic].log_start_offset, logs[topic].next_offset) == found.bounds[topic]


def test_internal_topics_are_opened_too(opened):
    _, logs = opened
    for topic in ("__cluster_metadata", "__transaction_state"):
        assert logs[topic].next_offset > 0
        assert list(logs[topic].columns(0))
