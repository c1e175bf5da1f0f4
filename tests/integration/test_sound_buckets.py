"""The check of every bucket before its server ends finds damage in every store of the bucket."""

from __future__ import annotations

import pytest
from bucket_truth import sound_roots
from manager_world import NOW, TIERED, World, send, settle

from remote.store.open_store import open_store
from tiered.demo.s3_endpoint import S3Endpoint

BUCKET = "s3://looked-at"


@pytest.mark.server
def test_damage_in_any_store_of_a_bucket_is_found_before_its_server_ends() -> None:
    endpoint = S3Endpoint()
    endpoint.start()
    endpoint.create_bucket("looked-at")
    for root in ("a", "b/c"):
        store = open_store(f"{BUCKET}/{root}", endpoint.options())
        with World().open(store=store) as manager:
            manager.topics.create("t", 1, TIERED, now_ms=NOW)
            send(manager, 200)
            settle(manager)
    assert sound_roots(BUCKET, endpoint.options()) == ["a", "b/c"]
    store = open_store(f"{BUCKET}/b/c", endpoint.options())
    key = next(info.key for info in store.list("") if info.key.endswith(".log"))
    body = bytearray(store.get(key))
    body[100] ^= 1
    store.put(key, bytes(body))
    store.close()
    with pytest.raises(AssertionError, match="damaged"):
        endpoint.stop()
