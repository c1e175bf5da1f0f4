"""Parts in flight: at most as many as there are places, over all uploads; an error ends its upload."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from local.errors import Corrupt, Unavailable
from remote.store import s3_store
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.s3_store import PartSender, S3Store, SentPart


def sent(number, body):
    return SentPart(number=number, tag=f"t{number}", size_bytes=len(body))


def test_sent_parts_are_returned_in_their_order():
    assert [part.number for part in PartSender(3).send([b"a", b"b", b"c", b"d"], sent)] == [1, 2, 3, 4]


def test_all_uploads_share_the_places_for_parts():
    sender, lock, now, most = PartSender(2), threading.Lock(), [0], [0]
    gate = threading.Semaphore(0)

    def send(number, body):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.acquire(timeout=60)
        with lock:
            now[0] -= 1
        return sent(number, body)

    with ThreadPoolExecutor(3) as uploads:
        running = [uploads.submit(sender.send, [b"x"] * 5, send) for _ in range(3)]
        for _ in range(15):
            gate.release()
        assert [len(each.result(timeout=60)) for each in running] == [5, 5, 5]
    assert most[0] <= 2


def test_an_upload_reads_one_part_more_than_it_has_places():
    made, second, seen = [], threading.Event(), []

    def parts():
        for number in range(1, 5):
            made.append(number)
            if number == 2:
                second.set()
            yield b"x"

    def send(number, body):
        if number == 1:
            assert second.wait(60), "the next part is not read while the first is being sent"
            seen.extend(made)
        return sent(number, body)

    PartSender(1).send(parts(), send)
    assert seen == [1, 2]


def test_a_failed_part_ends_the_upload_and_frees_its_places():
    sender, asked = PartSender(2), []

    def parts():
        for number in range(100):
            asked.append(number)
            yield b"x"

    def failing(number, body):
        if number == 3:
            raise Unavailable("sending a part")
        return sent(number, body)

    with pytest.raises(Unavailable):
        sender.send(parts(), failing)
    assert len(asked) < 100
    assert len(sender.send([b"a"] * 10, sent)) == 10, "a place is still taken"


def test_an_error_of_the_source_is_raised_and_frees_the_places():
    def parts():
        yield b"a"
        raise Corrupt("reading a segment")

    sender = PartSender(1)
    with pytest.raises(Corrupt):
        sender.send(parts(), sent)
    assert len(sender.send([b"a"] * 3, sent)) == 3


def test_only_file_systems_of_a_parent_process_are_kept_alive(monkeypatch):
    inherited: list[object] = []
    monkeypatch.setattr(s3_store, "_inherited", inherited)
    monkeypatch.setattr(s3_store, "make_filesystem", lambda options: SimpleNamespace())
    store = S3Store("bucket", policy=RetryPolicy(attempts_max=1))
    of_parent = store._fs
    assert inherited == []
    store._pid += 1
    assert store._fs is not of_parent
    assert inherited == [of_parent]
    store.close()
    store.close()
    assert inherited == [of_parent]
