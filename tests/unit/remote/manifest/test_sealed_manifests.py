"""An attacker with write access and without a key: forgeries are refused, plaintext is hidden.

The tests forge as such an attacker does: with bytes of the bucket, and with all CRCs made to fit.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import first_release
import pytest
from checked_bucket import check_partition
from disk_model import ModelDisk
from manager_world import NOW, TIERED, World, settle

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError
from local.format.crc32c import crc32c
from local.format.record import Record
from local.names import TopicPartition
from remote.fetch.segment_check import Severity
from remote.keys import MANIFESTS, PAGES, data_key, indexes_key, manifest_key, parse_manifest_key, parse_page_key
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, decode_manifest, encode_manifest
from remote.manifest.manifest_changes import add_segments
from remote.manifest.manifest_lookup import ManifestDiskCache
from remote.manifest.manifest_memory_cache import FILE, ManifestMemoryCache
from remote.manifest.manifest_page import decode_page, encode_page
from remote.manifest.page_out import PageRule
from remote.manifest.sealing import Sealer, is_sealed, keyed, sealed_size
from remote.segments.encryption import KeyRing, is_current, parse_key_ring
from remote.store.memory_store import MemoryStore
from tiered.health.repair_sources import entries_of_page
from tiered.health.scrub import plan_scrub, run_scrub
from tiered.jobs.bucket_compaction import plan_compaction
from tiered.jobs.key_rotation import rewrap_keys
from tiered.migrate.fork import plan_fork, run_fork
from tiered.migrate.restore_plan import RestoreWish, plan_restore
from tiered.read.bucket_reader import RemoteLog

KEYS = {"one": bytes(range(32)), "two": bytes(range(32, 64))}
RING = KeyRing(KEYS)
STRICT = KeyRing(KEYS, required=("t",))
SMALL = PageRule(manifest_bytes_max=1500, page_rows_max=4, page_rows_min=1, kept_entries_min=2)
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """An encrypted topic of two partitions with several segments each; pages of older entries."""
    text = ";".join(f"{name} {base64.b64encode(key).decode()}" for name, key in KEYS.items())
    monkeypatch.setenv("TIERED_KEYS", text)
    monkeypatch.setattr("remote.manifest.commit_protocol.PAGE_RULE", SMALL)
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 2, {**TIERED, "remote.encryption.key.id": "one"}, now_ms=NOW)
        for number in range(8):
            for partition in (0, 1):
                manager.append("t", records(20), partition, now_ms=NOW)
                manager.partitions.roll("t", now_ms=NOW + number)
            settle(manager)
    World.made.remove(world)  # these tests damage the bucket
    return world


def records(count: int, value: bytes = b"value") -> list[Record]:
    return [Record(b"k%d" % at, value, NOW + at) for at in range(count)]


def prefixes(store: MemoryStore) -> list[str]:
    return [name.prefix for name in list_partitions(store)]


def values(store: MemoryStore, ring: KeyRing = RING, partition: TopicPartition = P0) -> list[bytes | None]:
    return [record.value for record in RemoteLog(store, keys=ring).reader().records(partition, 0)]


def newest(store: MemoryStore, prefix: str) -> Manifest:
    return MetadataLog(keyed(store, RING), prefix).refresh(exact=True)


def entries(store: MemoryStore, prefix: str):
    log = MetadataLog(keyed(store, RING), prefix)
    return log.ask(log.refresh(), lambda index: list(index.entries()))


def forged_head(store: MemoryStore, prefix: str, sequence: int | None = None, **changes: object) -> Manifest:
    """A manifest of an attacker who knows the format: not sealed, because the attacker has no key."""
    known = newest(store, prefix)  # generous: the attacker knows its content
    made = {
        "sequence": known.sequence + 1 if sequence is None else sequence,
        "commit_id": "F" * 26,
        "parent_id": known.commit_id,
        "seal_key_id": None,
        "pages": (),
        "segments": (),
        "views": (),
        **changes,
    }
    manifest = replace(known, **made)  # type: ignore[arg-type]
    store.put(prefix + manifest_key(manifest.sequence), encode_manifest(manifest))
    return manifest


def own_segments(prefix: str, plain: MemoryStore) -> tuple[MemoryStore, list]:
    """A bucket of the attacker with plaintext segments, and their entries."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.append("t", records(20, b"forged"), 0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    World.made.remove(world)
    home = prefixes(world.store)[0]
    entries = list(MetadataLog(world.store, home).refresh().segments)
    for each in entries:
        for key in (each.data_key, each.indexes_key):
            plain.put(prefix + key, world.store.get(home + key))
    return world.store, entries


# --- visible bytes ----------------------------------------------------------------------------------------------------


def test_an_encrypted_topic_has_no_plaintext_in_the_bucket(world: World) -> None:
    for prefix in prefixes(world.store):
        sums = {entry.segment_crc32c for entry in entries(world.store, prefix)}
        assert None not in sums
        for info in world.store.list(prefix):
            body = world.store.get(info.key)
            assert is_sealed(body) or MANIFESTS not in info.key, info.key
            assert is_sealed(body) or PAGES not in info.key, info.key
            for crc in sums:
                assert crc is not None
                assert str(crc).encode() not in body
                assert crc.to_bytes(4, "big") not in body
                assert crc.to_bytes(4, "little") not in body
            assert not any(each.encode() in body for each in ("retention.ms", "record_count", "wrapped_key"))


def test_a_plain_topic_is_stored_in_the_older_format() -> None:
    store = MemoryStore()
    log = MetadataLog(keyed(store, RING), f"t-{'A' * 22}/0/")
    manifest = log.become_writer("w", 1, topic="t", topic_id="A" * 22, partition=0, properties={})
    assert store.get(f"t-{'A' * 22}/0/{manifest_key(1)}") == encode_manifest(manifest)
    assert store.get(f"t-{'A' * 22}/0/{manifest_key(1)}").startswith(b"tiered-head 1 ")


def test_a_reader_without_the_key_gets_access_denied_with_the_key_id(world: World) -> None:
    for ring in (KeyRing({}), KeyRing({"two": KEYS["two"]})):
        with pytest.raises(AccessDenied, match=r"its key is not in the key ring: key_id=one object=t-\S+meta/head/\d+"):
            values(world.store, ring)
    with pytest.raises(Corrupt, match="forged, moved or edited"):
        values(world.store, KeyRing({"one": bytes(32)}))


# --- the seal ---------------------------------------------------------------------------------------------------------


def test_a_seal_is_deterministic_and_its_size_is_known_without_a_key() -> None:
    sealer = Sealer("t-x/0/", RING)
    for size in (1, 100, 5000):
        sealed = sealer.seal("meta/head/1", bytes(size), "one")
        assert sealed == sealer.seal("meta/head/1", bytes(size), "one")
        assert len(sealed) == sealed_size("meta/head/1", size, "one")
        assert bytes(sealer.open(sealed).body) == bytes(size)
        assert sealed != sealer.seal("meta/head/2", bytes(size), "one")


def test_a_seal_opens_only_under_its_own_name_key_and_partition() -> None:
    sealed = Sealer("t-x/0/", RING).seal("meta/head/1", b"body", "one")
    elsewhere = [
        (Sealer("t-x/1/", RING), sealed),
        (Sealer("u-x/0/", RING), sealed),
        (Sealer("t-x/0/", RING), relined(sealed.replace(b"meta/head/1", b"meta/head/2"))),
        (Sealer("t-x/0/", RING), relined(sealed.replace(b" one ", b" two "))),
    ]
    for sealer, body in elsewhere:
        with pytest.raises(Corrupt, match="forged, moved or edited"):
            sealer.open(body)
    assert Sealer("root/t-x/0/", RING).open(sealed).body == b"body", "a seal must open under any prefix of the bucket"


def relined(sealed: bytes) -> bytes:
    """The sealed bytes with a first line whose length and checksum fit."""
    line, _, body = sealed.partition(b"\n")
    words = line.split(b" ")
    return b" ".join([*words[:4], b"%08x" % crc32c(body), b"%d" % len(body)]) + b"\n" + body


def test_any_flipped_bit_of_a_sealed_manifest_is_refused_even_with_fitting_checksums(world: World) -> None:
    prefix = prefixes(world.store)[0]
    manifest = newest(world.store, prefix)
    whole = world.store.get(prefix + manifest_key(manifest.sequence))
    sealer = Sealer(prefix, RING)
    start = whole.index(b"\n") + 1
    assert decode_manifest(whole, sealer=sealer) == manifest
    for at in range(start, len(whole), max(1, len(whole) // 200)):
        body = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        for forged in (body, relined(body), relined(body[:-1])):
            with pytest.raises(Corrupt):
                decode_manifest(forged, sealer=sealer)


def test_a_manifest_that_claims_a_seal_it_does_not_have_is_refused(world: World) -> None:
    prefix = prefixes(world.store)[0]
    manifest = newest(world.store, prefix)
    bare = encode_manifest(replace(manifest, seal_key_id=None))
    sealer = Sealer(prefix, RING)
    assert decode_manifest(bare, sealer=sealer).seal_key_id is None
    inner = bytes(sealer.open(world.store.get(prefix + manifest_key(manifest.sequence))).body)
    with pytest.raises(Corrupt, match="names a seal key and is not sealed"):
        decode_manifest(inner, sealer=sealer)
    other = sealer.seal(manifest_key(manifest.sequence), encode_manifest(replace(manifest, seal_key_id=None)), "one")
    with pytest.raises(Corrupt, match="another seal"):
        decode_manifest(other, sealer=sealer)


def test_a_page_with_another_seal_or_none_is_refused_even_with_a_fitting_checksum(world: World) -> None:
    prefix = prefixes(world.store)[0]
    page, sealer = newest(world.store, prefix).pages[0], Sealer(prefix, RING)
    whole = world.store.get(prefix + page.key)
    inner = bytes(sealer.open(whole).body)
    assert len(decode_page(page, whole, sealer)) == page.segment_count
    for body in (inner, sealer.seal(page.key, inner, "two"), sealer.seal(page.key[:-1] + "x", inner, "one")):
        fitting = replace(page, page_bytes=len(body), page_crc32c=crc32c(body))
        with pytest.raises(Corrupt, match="another seal"):
            decode_page(fitting, body, sealer)
    bare = replace(page, seal_key_id=None)
    with pytest.raises(Corrupt, match="not sealed, and the key ring requires"):
        decode_page(bare, whole, Sealer(prefix, STRICT))


def test_a_commit_that_removes_the_seal_of_a_chain_is_refused(world: World) -> None:
    log = MetadataLog(keyed(world.store, RING), prefixes(world.store)[0])
    before = log.join()
    with pytest.raises(InvalidRequest, match="it removes the seal"):
        log.commit(lambda manifest: replace(manifest, seal_key_id=None), NOW)
    assert log.refresh(exact=True) == before


# --- attacks ----------------------------------------------------------------------------------------------------------


def swap_segments(store: MemoryStore) -> None:
    """Put objects of partition 1 under the names of partition 0."""
    one, other = prefixes(store)
    for mine, theirs in zip(entries(store, one), entries(store, other), strict=True):
        for key, from_key in ((mine.data_key, theirs.data_key), (mine.indexes_key, theirs.indexes_key)):
            store.put(one + key, store.get(other + from_key))


def swap_indexes(store: MemoryStore) -> None:
    one = prefixes(store)[0]
    first, second = entries(store, one)[:2]
    bodies = store.get(one + first.indexes_key), store.get(one + second.indexes_key)
    store.put(one + first.indexes_key, bodies[1])
    store.put(one + second.indexes_key, bodies[0])


def swap_manifests(store: MemoryStore) -> None:
    """Put the newest manifest of partition 1 in place of the one of partition 0."""
    one, other = prefixes(store)
    sequence = newest(store, one).sequence
    store.put(one + manifest_key(sequence), store.get(other + manifest_key(newest(store, other).sequence)))


def move_manifest(store: MemoryStore) -> None:
    """Put an old manifest under the next number."""
    one = prefixes(store)[0]
    sequence = newest(store, one).sequence
    store.put(one + manifest_key(sequence + 1), store.get(one + manifest_key(sequence - 3)))


def swap_pages(store: MemoryStore) -> None:
    one, other = prefixes(store)
    mine, theirs = newest(store, one).pages[0], newest(store, other).pages[0]
    store.put(one + mine.key, store.get(other + theirs.key))


def plain_page(store: MemoryStore) -> None:
    """Put the page without its seal."""
    one = prefixes(store)[0]
    page = newest(store, one).pages[0]
    store.put(one + page.key, bytes(Sealer(one, RING).open(store.get(one + page.key)).body))


def plaintext_over_ciphertext(store: MemoryStore) -> None:
    """Put the attacker's plaintext segments under the names of encrypted ones."""
    one = prefixes(store)[0]
    theirs, forgeries = own_segments(one, MemoryStore())
    home = prefixes(theirs)[0]
    for mine, forged in zip(entries(store, one), forgeries, strict=False):
        store.put(one + mine.data_key, theirs.get(home + forged.data_key))
        store.put(one + mine.indexes_key, theirs.get(home + forged.indexes_key))


ATTACKS = [
    swap_segments,
    swap_indexes,
    swap_manifests,
    move_manifest,
    swap_pages,
    plain_page,
    plaintext_over_ciphertext,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("ring", [RING, STRICT], ids=["ring", "required"])
def test_bytes_that_the_topics_writer_did_not_write_are_never_returned(
    world: World, attack: Callable[[MemoryStore], None], ring: KeyRing
) -> None:
    expected = values(world.store, ring)
    assert len(expected) == 160
    attack(world.store)
    with pytest.raises(Corrupt):
        values(world.store, ring)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
def test_a_deep_scrub_finds_every_attack(world: World, attack: Callable[[MemoryStore], None]) -> None:
    prefix = prefixes(world.store)[0]
    assert not check_partition(world.store, prefix, keys=RING).findings
    attack(world.store)
    assert check_partition(world.store, prefix, keys=RING).findings


def forge_chain(store: MemoryStore) -> None:
    """Replace all manifests by one without a seal, with a plaintext segment of the attacker."""
    prefix = prefixes(store)[0]
    _, entries = own_segments(prefix, store)
    sequence = newest(store, prefix).sequence
    forged = [replace(each, committed_ms=NOW) for each in entries]
    manifest = forged_head(store, prefix, sequence, segments=tuple(forged), parent_id=None, log_start_offset=0)
    for info in list(store.list(prefix + MANIFESTS)):
        found = parse_manifest_key(info.key.removeprefix(prefix))
        if found != manifest.sequence:
            store.delete([info.key])


def append_forged(store: MemoryStore) -> None:
    """Put the same manifest as the next one of the chain."""
    prefix = prefixes(store)[0]
    _, entries = own_segments(prefix, store)
    forged_head(store, prefix, segments=tuple(entries), log_start_offset=0)


def roll_back(store: MemoryStore) -> None:
    """Delete the newest manifests: an older state with its original seal."""
    prefix = prefixes(store)[0]
    sequence = newest(store, prefix).sequence
    store.delete([prefix + manifest_key(sequence - at) for at in range(3)])


@pytest.mark.parametrize("attack", [forge_chain, append_forged], ids=lambda each: each.__name__)
def test_a_key_ring_that_requires_the_seal_refuses_a_forged_chain(
    world: World, attack: Callable[[MemoryStore], None]
) -> None:
    attack(world.store)
    with pytest.raises(Corrupt, match="not sealed"):
        values(world.store, STRICT)
    with pytest.raises(Corrupt, match="not sealed"):
        values(world.store, KeyRing(KEYS, required=("*",)))


@pytest.mark.parametrize("attack", [forge_chain, append_forged, roll_back], ids=lambda each: each.__name__)
@pytest.mark.parametrize("memory", ["process", "looks", "disk"])
def test_a_reader_that_has_seen_the_sealed_chain_accepts_no_other_one(
    world: World, attack: Callable[[MemoryStore], None], memory: str
) -> None:
    prefix, store, disk = prefixes(world.store)[0], keyed(world.store, RING), ModelDisk()
    clock = [0]
    known = ManifestMemoryCache(lambda: clock[0])
    log = MetadataLog(store, prefix)

    def look() -> Manifest | None:
        match memory:
            case "process":
                return log.load(exact=True)
            case "looks":
                clock[0] += 120_000
                return MetadataLog(store, prefix, known=known).load(exact=True)
            case _:
                return MetadataLog(store, prefix, copies=ManifestDiskCache(disk, "./index")).load(exact=True)

    seen = look()
    assert seen is not None
    attack(world.store)
    if attack is not append_forged and memory == "process":
        assert look() == seen, "the reader did not continue from the seen manifest"
        return
    with pytest.raises(Corrupt, match=r"forged|older state|does not follow"):
        look()


def test_a_manager_does_not_take_over_a_forged_chain_that_its_key_ring_refuses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge_chain(world.store)
    text = ";".join(f"{name} {base64.b64encode(key).decode()}" for name, key in KEYS.items())
    monkeypatch.setenv("TIERED_KEYS", f"{text};@require t")
    before = {info.key for info in world.store.list("")}
    with world.open() as manager:
        assert isinstance(manager.problems[P0], Corrupt)
        assert P1 not in manager.problems
    added = {info.key for info in world.store.list("")} - before
    assert not any(key.startswith(prefixes(world.store)[0]) for key in added)


@pytest.mark.parametrize("attack", [forge_chain, append_forged, roll_back], ids=lambda each: each.__name__)
def test_a_restarted_manager_remembers_the_sealed_chain_without_any_setting(
    world: World, attack: Callable[[MemoryStore], None]
) -> None:
    attack(world.store)
    before = {info.key for info in world.store.list("")}
    for is_look in (True, False):
        with world.open(read_only=is_look) as manager:
            assert isinstance(manager.problems[P0], Corrupt)
            assert re.search("forged|older state|does not follow", str(manager.problems[P0]))
            assert P1 not in manager.problems
            with pytest.raises(LogError):
                list(manager.reader().records(P0, 0))
    added = {info.key for info in world.store.list("")} - before
    assert not any(key.startswith(prefixes(world.store)[0]) for key in added), "a forged chain was continued"


def test_a_bucket_restored_on_purpose_opens_when_the_remembered_state_is_removed(world: World) -> None:
    saved = newest(world.store, prefixes(world.store)[0])
    roll_back(world.store)
    with world.open() as manager:
        assert f"remove the file {FILE}" in str(manager.problems[P0])
        assert f"seen_sequence={saved.sequence} found_sequence={saved.sequence - 3}" in str(manager.problems[P0])
    world.disk.unlink(f"./data/{FILE}")
    with world.open() as manager:
        assert not isinstance(manager.problems.get(P0), Corrupt) or "older state" not in str(manager.problems[P0])


def test_a_remembered_sealed_manifest_is_refused_without_its_seal(world: World) -> None:
    prefix = prefixes(world.store)[0]
    known = newest(world.store, prefix)
    key = prefix + manifest_key(known.sequence)
    world.store.delete([key])
    world.store.put(key, encode_manifest(replace(known, seal_key_id=None)))
    with world.open() as manager:
        assert isinstance(manager.problems[P0], Corrupt)
        assert P1 not in manager.problems


@pytest.mark.parametrize("is_seen_by", ["node", "looks", "disk"])
def test_a_missing_seal_is_reported_as_such_and_not_as_an_older_state(world: World, is_seen_by: str) -> None:
    prefix, store, clock = prefixes(world.store)[0], keyed(world.store, RING), [0]
    known, copies = ManifestMemoryCache(lambda: clock[0]), ManifestDiskCache(ModelDisk(), "./index")
    MetadataLog(store, prefix, known=known).load()
    MetadataLog(store, prefix, copies=copies).load()
    forge_chain(world.store)
    clock[0] += 120_000
    match is_seen_by:
        case "node":
            with world.open() as manager:
                wrong = manager.problems[P0]
        case "looks":
            with pytest.raises(Corrupt) as caught:
                MetadataLog(store, prefix, known=known).load(exact=True)
            wrong = caught.value
        case _:
            with pytest.raises(Corrupt) as caught:
                MetadataLog(store, prefix, copies=copies).load()
            wrong = caught.value
    assert "the manifest of an encrypted topic is not sealed" in str(wrong)
    assert "older state" not in str(wrong)


def test_a_reader_refuses_an_encrypted_topics_manifest_without_seal_and_entries(world: World) -> None:
    prefix = prefixes(world.store)[0]
    forged = forged_head(world.store, prefix, newest(world.store, prefix).sequence, parent_id=None)
    for info in list(world.store.list(prefix + MANIFESTS)):
        if parse_manifest_key(info.key.removeprefix(prefix)) != forged.sequence:
            world.store.delete([info.key])
    with pytest.raises(Corrupt, match="the manifest of an encrypted topic is not sealed and names no segment"):
        values(world.store)
    assert values(world.store, partition=TopicPartition("t", 1)), "the other partition is not readable"


def test_a_required_topic_refuses_plaintext_segments_even_in_a_sealed_chain(world: World) -> None:
    prefix = prefixes(world.store)[0]
    _, entries = own_segments(prefix, world.store)
    log = MetadataLog(keyed(world.store, RING), prefix)
    log.join()
    names = 160, 179, 1, entries[0].ulid
    keys = {"data_key": data_key(*names), "indexes_key": indexes_key(*names)}
    for name, key in keys.items():
        world.store.put(prefix + key, world.store.get(prefix + getattr(entries[0], name)))
    moved = replace(entries[0], base_offset=160, next_offset=180, epochs=((1, 160),), **keys)
    log.commit(add_segments([moved]), NOW)
    with pytest.raises(Corrupt, match="not encrypted, and the key ring requires"):
        values(world.store, STRICT)


# --- all operations that read or commit -------------------------------------------------------------------------------


def test_forks_restores_scrubs_and_jobs_open_sealed_topics_only_with_the_key_ring(world: World) -> None:
    store, prefix = keyed(world.store, RING), prefixes(world.store)[0]
    names = list_partitions(store)
    assert run_scrub(store, plan_scrub(store, names, deep=True), keys=RING)
    assert plan_restore(store, names, RestoreWish(), now_ms=NOW, keys=RING)
    run_fork(store, plan_fork(store, names, "f", known=()), now_ms=lambda: NOW)
    forks = [name for name in list_partitions(store) if name.topic == "f"]
    assert all(newest(world.store, each.prefix).seal_key_id == "one" for each in forks)
    assert values(world.store, partition=TopicPartition("f", 0)) == values(world.store)
    del prefix
    for act in (
        lambda: plan_restore(world.store, names, RestoreWish(), now_ms=NOW),
        lambda: plan_fork(world.store, names, "g", known=()),
        lambda: plan_compaction(world.store, names[0], now_ms=NOW),
    ):
        with pytest.raises(LogError):
            act()


def test_a_damaged_sealed_page_is_restored_from_sealed_manifests_alone(world: World) -> None:
    prefix, store = prefixes(world.store)[0], keyed(world.store, RING)
    manifest = newest(world.store, prefix)
    page = manifest.pages[0]
    whole = world.store.get(prefix + page.key)
    world.store.put(prefix + page.key, whole[:-1] + bytes([whole[-1] ^ 1]))
    entries, where = entries_of_page(store, prefix, manifest, page)
    assert where == "older manifest"
    parsed = parse_page_key(page.key)
    assert parsed is not None
    again, body = encode_page(entries, parsed.epoch, parsed.ulid, sealer=Sealer(prefix, RING), seal_key_id="one")
    assert (again, body) == (page, whole)
    for sequence in range(1, manifest.sequence):
        older = MetadataLog(store, prefix)._chain.read(sequence)
        if older is not None:  # the forgery of an attacker: the same without a seal
            pages = tuple(replace(each, seal_key_id=None) for each in older.pages)
            world.store.put(
                prefix + manifest_key(sequence), encode_manifest(replace(older, seal_key_id=None, pages=pages))
            )
    with pytest.raises(Corrupt, match="and unsealed objects may be forged"):
        entries_of_page(store, prefix, manifest, page)


# --- the first release, and the upgrade -------------------------------------------------------------------------------


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The bucket that the first release wrote: encrypted, with manifests without a seal."""
    monkeypatch.setattr("remote.manifest.commit_protocol.PAGE_RULE", SMALL)
    world = World()
    objects, _ = first_release.load()
    world.store._objects = {key: (body, NOW) for key, body in objects.items()}
    yield world
    World.made.remove(world)


def _name_of(store: MemoryStore, topic: str) -> str:
    return next(name.prefix for name in list_partitions(store) if name.topic == topic)


def test_rotating_keys_seals_an_old_topic_binds_its_keys_and_is_idempotent(old: World) -> None:
    ring = KeyRing({"first": bytes(range(32)), "new": bytes(range(50, 82))})
    store, prefix = keyed(old.store, ring), _name_of(old.store, "encrypted")
    before = values(old.store, ring, TopicPartition("encrypted", 0))
    assert not any(is_current(entry.wrapped_key) for entry in MetadataLog(store, prefix).refresh().segments)
    manifest = MetadataLog(store, prefix).refresh()
    log = MetadataLog(store, prefix)
    log.become_writer("w", NOW, topic="encrypted", topic_id=manifest.topic_id, partition=0)
    assert log.cached is not None
    assert log.cached.seal_key_id is None, "a takeover must not seal an older chain"
    changed = rewrap_keys(log, ring, "first", NOW)
    assert changed == manifest.segment_count > 0
    sealed = log.refresh()
    assert sealed.seal_key_id == "first"
    assert {page.seal_key_id for page in sealed.pages} <= {"first"}
    assert rewrap_keys(log, ring, "first", NOW) == 0
    assert log.refresh() == sealed
    assert values(old.store, ring, TopicPartition("encrypted", 0)) == before
    required = KeyRing({"first": bytes(range(32))}, required=("encrypted",))
    assert values(old.store, required, TopicPartition("encrypted", 0)) == before
    with pytest.raises(AccessDenied):
        values(old.store, KeyRing({}), TopicPartition("encrypted", 0))
    rewrap_keys(log, ring, "new", NOW)
    assert values(old.store, KeyRing({"new": bytes(range(50, 82))}), TopicPartition("encrypted", 0)) == before


def test_an_old_encrypted_topic_is_readable_and_reads_warn_it_is_not_authenticated(
    old: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.manifest.manifest_memory_cache._WARNED", set())
    prefix = _name_of(old.store, "encrypted")
    assert values(old.store, first_release.KEYS, TopicPartition("encrypted", 0))
    assert f"not authenticated: prefix={prefix}" in caplog.text
    caplog.clear()
    assert values(old.store, first_release.KEYS, TopicPartition("plain", 0))
    assert "authenticated" not in caplog.text
    found = check_partition(old.store, prefix, keys=first_release.KEYS).findings
    assert [(each.severity, "tiered rotate-keys encrypted" in each.next_step) for each in found] == [
        (Severity.WARNING, True)
    ]
    assert check_partition(old.store, _name_of(old.store, "plain"), keys=first_release.KEYS).findings == []


def test_a_scrub_without_the_key_ring_skips_sealed_partitions_and_checks_the_others(world: World) -> None:
    names = list_partitions(world.store)
    plan = plan_scrub(world.store, names, deep=True)
    found = [each for survey in plan.surveys.values() for each in survey.findings]
    assert [(each.severity, each.is_unread) for each in found] == [(Severity.WARNING, True)] * len(names)
    assert all("key_id=one" in each.what for each in found)


def test_old_manifests_restored_after_the_upgrade_are_refused(old: World) -> None:
    ring = first_release.KEYS
    store, prefix = keyed(old.store, ring), _name_of(old.store, "encrypted")
    saved = {info.key: old.store.get(info.key) for info in old.store.list(prefix + MANIFESTS)}
    log = MetadataLog(store, prefix)
    manifest = log.refresh()
    writer = MetadataLog(store, prefix)
    writer.become_writer("w", NOW, topic="encrypted", topic_id=manifest.topic_id, partition=0)
    rewrap_keys(writer, ring, "first", NOW)
    copies = ManifestDiskCache(ModelDisk(), "./index")
    MetadataLog(store, prefix, copies=copies).load()
    old.store.delete([info.key for info in old.store.list(prefix + MANIFESTS)])
    for key, body in saved.items():
        old.store.put(key, body)
    with pytest.raises(
        Corrupt, match="the manifest of an encrypted topic is not sealed and a sealed manifest was read before"
    ):
        MetadataLog(store, prefix, copies=copies).load()
    with pytest.raises(Corrupt, match="not sealed"):
        values(old.store, KeyRing({"first": bytes(range(32))}, required=("encrypted",)), TopicPartition("encrypted", 0))


@pytest.mark.parametrize("cut", range(8))
def test_a_key_rotation_stopped_after_any_commit_is_finished_by_a_second_run(world: World, cut: int) -> None:
    prefix, before = prefixes(world.store)[0], values(world.store)

    class Cut(Exception):
        pass

    class Cutting(MemoryStore):
        left = cut

        def put_if_absent(self, key: str, body: bytes) -> None:
            if MANIFESTS in key:
                if self.left == 0:
                    raise Cut
                self.left -= 1
            super().put_if_absent(key, body)

    cutting = Cutting()
    cutting._objects = world.store._objects
    log = MetadataLog(keyed(cutting, RING), prefix)
    cutting.left = 99
    log.become_writer("w", NOW, topic="t", topic_id=newest(world.store, prefix).topic_id, partition=0)
    cutting.left = cut
    with suppress(Cut):
        rewrap_keys(log, RING, "two", NOW)
    assert values(world.store) == before
    again = MetadataLog(keyed(world.store, RING), prefix)
    again.become_writer("x", NOW, topic="t", topic_id=newest(world.store, prefix).topic_id, partition=0)
    rewrap_keys(again, RING, "two", NOW)
    assert values(world.store, KeyRing({"two": KEYS["two"]})) == before


# --- the key ring -----------------------------------------------------------------------------------------------------


def test_a_key_ring_names_the_topics_that_must_be_encrypted() -> None:
    ring = parse_key_ring(["@require t payments", f"one {base64.b64encode(bytes(32)).decode()}"], "keys")
    assert [ring.requires(each) for each in ("t", "payments", "u")] == [True, True, False]
    assert parse_key_ring(["@require *"], "keys").requires("anything")
    for wrong in ("@require", "@require a/b", "@requires t"):
        with pytest.raises(InvalidRequest, match=r"file=keys line=1"):
            parse_key_ring([wrong], "keys")
