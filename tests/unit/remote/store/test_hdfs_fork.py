"""A forked child of a process that used HDFS: what it knows of the fork, without a server."""

from __future__ import annotations

import os
import time

import pytest

from remote.store import hdfs_store


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of forking with threads
@pytest.mark.parametrize("has_connected", [True, False])
def test_a_forked_child_knows_the_time_of_the_fork_if_a_parent_connected(monkeypatch, has_connected):
    monkeypatch.setattr(hdfs_store, "_has_connected", has_connected)
    before = time.monotonic()
    child = os.fork()
    if not child:
        forked_at = hdfs_store._forked_at
        knows = forked_at is not None and before <= forked_at <= time.monotonic()
        os._exit(0 if knows is has_connected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_new_client_waits_until_copied_connections_are_unused(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    waited = []
    monkeypatch.setattr(hdfs_store, "_has_connected", False)
    monkeypatch.setattr(hdfs_store, "_forked_at", 100.0)
    monkeypatch.setattr(hdfs_store.time, "monotonic", lambda: 101.0)
    monkeypatch.setattr(hdfs_store.time, "sleep", waited.append)
    monkeypatch.setattr(fsspec, "filesystem", lambda *words, **options: options)
    hdfs_store.make_filesystem("namenode:8020", {})
    assert waited == [hdfs_store.COPIED_CONNECTIONS_S - 1]
