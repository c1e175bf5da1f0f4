"""Buckets of Aiven's plugin are read record for record; forged ones raise a named error."""

from __future__ import annotations

import base64
import json
import random
import struct

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from external_samples import (
    NAME,
    NOW,
    Sample,
    new_key,
    packed_sizes,
    put_aiven,
    write_log,
)
from external_truth import assert_reads

from local import kernels
from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound
from remote.external.aiven_layout import PrivateKeys, Sealing, decode_aiven_manifest
from remote.external.external_layout import LayoutOptions
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.read.bucket_reader import RemoteLog


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    found = write_log(tmp_path_factory.mktemp("log") / NAME.directory)
    assert len(found.segments) > 4
    assert any(each.txnindex for each in found.segments)
    assert found.stable < found.end
    return found


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "key1.pem")


def _opened(store, key=None, **options) -> RemoteLog:
    keys = {} if key is None else {key.id: str(key.path)}
    return RemoteLog(store, layout=LayoutOptions(layout="aiven", private_keys=keys, **options))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("chunk", [333, 1024, 1 << 22])
def test_aiven_segments_of_every_encoding_are_read_record_for_record(sample, key, compressed, encrypted, chunk) -> None:
    store = MemoryStore()
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number, chunk=chunk, compressed=compressed, key=key if encrypted else None)
    with _opened(store, key if encrypted else None) as bucket:
        assert_reads(bucket, sample)
        assert bucket.gaps(NAME) == []


def test_aiven_layout_is_detected_and_nothing_is_written_to_the_bucket(sample) -> None:
    store = MemoryStore()
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number, compressed=bool(number % 2))
    before = {info.key: info.size_bytes for info in store.list("")}
    with RemoteLog(store, layout=LayoutOptions(layout="auto")) as bucket:
        assert_reads(bucket, sample)
        with pytest.raises(InvalidRequest, match="this bucket is read-only"):
            bucket.pin(NAME, now_ms=NOW, expires_ms=NOW + 1, holder="t")
    assert {info.key: info.size_bytes for info in store.list("")} == before


def test_an_aiven_segment_counts_only_if_its_manifest_exists(sample) -> None:
    store = MemoryStore()
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number)
    put_aiven(store, sample.segments[1], number=70, without=(".rsm-manifest",))  # an upload that was interrupted
    put_aiven(store, sample.segments[2], number=71, without=(".log", ".indexes"))  # a deletion that was interrupted
    with _opened(store) as bucket:
        assert_reads(bucket, sample)


def test_a_second_refresh_reads_no_aiven_manifest_again(sample) -> None:
    inner = MemoryStore()
    store = MeteredStore(inner)
    for number, files in enumerate(sample.segments[:-1]):
        put_aiven(inner, files, number=number)
    with _opened(store) as bucket:
        assert bucket.reader().offsets(NAME)[1] == sample.segments[-1].base
        put_aiven(inner, sample.segments[-1], number=99)
        before = store.counts()
        bucket.refresh()
        assert bucket.reader().offsets(NAME) == (0, sample.end)
        assert (store.counts() - before).gets <= 3  # the new manifest, and its leader epochs


def test_a_missing_aiven_segment_is_reported_as_a_gap(sample, caplog) -> None:
    store = MemoryStore()
    lost = sample.segments[2]
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number, without=(".rsm-manifest",) if files is lost else ())
    with _opened(store) as bucket:
        assert bucket.gaps(NAME) == [(lost.base, lost.next)]
        assert f"first={lost.base} next={lost.next}" in caplog.text
        found = [record.offset for record in bucket.reader().records(NAME, 0)]
    assert found == [each.offset for each in sample.records if not lost.base <= each.offset < lost.next]


def test_aiven_copies_of_the_same_offsets_are_read_once(sample) -> None:
    store = MemoryStore()
    for number, files in enumerate(sample.segments):
        for copy in range(1 + number % 3):
            put_aiven(store, files, number=number * 10 + copy, stamp=NOW + copy, compressed=bool(copy % 2))
    with _opened(store) as bucket:
        assert_reads(bucket, sample)


def test_aiven_segments_under_several_key_prefixes_are_read_with_all_prefixes(sample) -> None:
    store = MemoryStore()
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number, prefix="" if number < 2 else "eu/tier-" if number < 4 else "b/")
    with _opened(store, prefixes=("", "eu/tier-", "b/")) as bucket:
        assert_reads(bucket, sample)
    with _opened(store, prefixes=("eu/tier-",)) as bucket:
        assert bucket.reader().offsets(NAME)[0] == sample.segments[2].base


def test_an_aiven_manifest_without_metadata_is_completed_from_the_bytes(sample, key) -> None:
    store = MemoryStore()
    for number, files in enumerate(sample.segments):
        stem = put_aiven(store, files, number=number, has_metadata=False, compressed=True, key=key)
        if number % 2:
            manifest = json.loads(store.get(stem + ".rsm-manifest"))
            del manifest["segmentIndexes"]  # older still: indexes were separate objects
            store.put(stem + ".rsm-manifest", json.dumps(manifest).encode())
    with _opened(store, key) as bucket:
        assert_reads(bucket, sample)


def test_a_missing_aiven_key_is_named_and_a_wrong_one_is_refused(sample, key, tmp_path) -> None:
    store = MemoryStore()
    put_aiven(store, sample.segments[0], number=0, key=key)
    with _opened(store) as bucket, pytest.raises(AccessDenied, match="key_id=key1"):
        list(bucket.reader().records(NAME, 0))
    other = new_key(tmp_path / "other.pem")
    with (
        _opened(store, other) as bucket,
        pytest.raises(AccessDenied, match="the key of this id is not the key that encrypted it"),
    ):
        list(bucket.reader().records(NAME, 0))
    for body in (b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        (tmp_path / "other.pem").write_bytes(body)
        with _opened(store, other) as bucket, pytest.raises(InvalidRequest, match="private key"):
            list(bucket.reader().records(NAME, 0))
    (tmp_path / "other.pem").unlink()
    with _opened(store, other) as bucket, pytest.raises(InvalidRequest, match="cannot read the file"):
        list(bucket.reader().records(NAME, 0))


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_flipped_bit_of_an_aiven_log_is_never_returned(sample, key, compressed, encrypted) -> None:
    """Neither as a record nor as a batch: the records before the error are the original ones."""
    store, draw = MemoryStore(), random.Random(8)
    files = sample.segments[0]
    stem = put_aiven(store, files, number=0, compressed=compressed, key=key if encrypted else None)
    body = store.get(stem + ".log")
    expected = [each for each in sample.records if each.offset < files.next]
    caught = 0
    for _ in range(6 if encrypted else 40):
        damaged = bytearray(body)
        damaged[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        store.put(stem + ".log", damaged)
        for read in (
            lambda reader: [record for columns in reader.columns(NAME, 0) for record in columns.records()],
            lambda reader: [
                record for run in reader.batches(NAME, 0) for record in kernels.decode_columns(run).records()
            ],
        ):
            with _opened(store, key if encrypted else None) as bucket:
                try:
                    found = read(bucket.reader())
                except Corrupt as error:
                    told = str(error)
                    caught += NAME.topic in told
                else:
                    # Only a batch's base offset, length and leader epoch are outside of its CRC.
                    assert [r._replace(offset=0) for r in found] == [
                        r._replace(offset=0) for r in expected[: len(found)]
                    ]
    assert caught > (10 if encrypted else 60)


def _manifest(**changes) -> bytes:
    fixed = {
        "type": "fixed",
        "originalChunkSize": 100,
        "originalFileSize": 1000,
        "transformedChunkSize": 100,
        "finalTransformedChunkSize": 100,
    }
    whole = {"version": "1", "chunkIndex": fixed, "compression": False, "segmentIndexes": None}
    return json.dumps({**whole, **changes}).encode()


def _fixed(**changes) -> dict:
    return {**json.loads(_manifest())["chunkIndex"], **changes}


def _variable(sizes: bytes, **changes) -> dict:
    text = base64.b64encode(zstandard.ZstdCompressor().compress(sizes)).decode()
    return {"type": "variable", "originalChunkSize": 100, "originalFileSize": 250, "transformedChunks": text, **changes}


def _metadata(**changes) -> dict:
    told = {
        "startOffset": 5,
        "endOffset": 9,
        "maxTimestampMs": 1,
        "eventTimestampMs": 1,
        "segmentLeaderEpochs": {"0": 5},
    }
    return {**told, **changes}


BOMB = base64.b64encode(zstandard.ZstdCompressor().compress(bytes(64 << 20))).decode()
HOSTILE = {
    "empty": b"",
    "not json": b"\x00\xff" * 50,
    "another type": b"[]",
    "deep": b'{"version":' + b"[" * 100_000,
    "version": _manifest(version="2"),
    "no chunk index": b'{"version":"1","compression":false}',
    "unknown chunk index": _manifest(chunkIndex=_fixed(type="other")),
    "negative file": _manifest(chunkIndex=_fixed(originalFileSize=-1)),
    "no chunk size": _manifest(chunkIndex=_fixed(originalChunkSize=0)),
    "two thousand million chunks": _manifest(chunkIndex=_fixed(originalChunkSize=1, originalFileSize=2**31 - 1)),
    "a number beyond all": _manifest(chunkIndex=_fixed(originalFileSize=10**30)),
    "sizes that contradict": _manifest(chunkIndex=_fixed(transformedChunkSize=99)),
    "a zero chunk": _manifest(chunkIndex=_fixed(finalTransformedChunkSize=0)),
    "not base64": _manifest(chunkIndex=_variable(b"", transformedChunks="%%%"), compression=True),
    "not zstd": _manifest(chunkIndex=_variable(b"", transformedChunks="AAAA"), compression=True),
    "a bomb": _manifest(chunkIndex=_variable(b"", transformedChunks=BOMB), compression=True),
    "count beyond all": _manifest(chunkIndex=_variable(struct.pack(">i", 2**31 - 1)), compression=True),
    "negative count": _manifest(chunkIndex=_variable(struct.pack(">i", -1)), compression=True),
    "other count": _manifest(chunkIndex=_variable(packed_sizes([10, 20])), compression=True),
    "width": _manifest(chunkIndex=_variable(struct.pack(">iib", 3, 10, 9) + bytes(22)), compression=True),
    "cut off": _manifest(chunkIndex=_variable(packed_sizes([10, 20, 30])[:-2]), compression=True),
    "index before the start": _manifest(segmentIndexes={"offset": {"position": -1, "size": 5}}),
    "index without end": _manifest(segmentIndexes={"offset": {"position": 0, "size": 2**60}}),
    "key without id": _manifest(encryption={"dataKey": "AAAA", "aad": ""}),
    "key not base64": _manifest(encryption={"dataKey": "k:%%", "aad": ""}),
    "its offsets decrease": _manifest(remoteLogSegmentMetadata=_metadata(endOffset=4)),
    "negative offset": _manifest(remoteLogSegmentMetadata=_metadata(startOffset=-3)),
}
NO_EPOCHS = {
    "epochs go back": {"0": 8, "1": 5},
    "epoch past the end": {"0": 50},
    "epoch before the start of time": {"0": -5},
    "epoch no number": {"x": 5},
    "negative epoch": {"-1": 5},
    "epoch of 32 bits": {"2147483648": 5},
    "epoch beyond all": {str(10**20): 5},
}


@pytest.mark.parametrize("what", NO_EPOCHS)
def test_invalid_leader_epochs_of_an_aiven_manifest_are_reported_as_unknown(what: str) -> None:
    """The segment is still readable: its batches have the epochs."""
    body = _manifest(remoteLogSegmentMetadata=_metadata(segmentLeaderEpochs=NO_EPOCHS[what]))
    facts = decode_aiven_manifest(body, "the-key").facts
    assert facts is not None
    assert (facts.base_offset, facts.next_offset, facts.epochs) == (5, 10, ())
    assert "leader epoch" in (facts.epochs_problem or "")


@pytest.mark.parametrize("what", HOSTILE)
def test_an_invalid_aiven_manifest_raises_corrupt_with_its_name(what: str) -> None:
    with pytest.raises(Corrupt, match="object=the-key"):
        decode_aiven_manifest(HOSTILE[what], "the-key")


def test_the_documented_example_of_a_variable_chunk_index_is_decoded() -> None:
    """One raw block of 15 bytes: three chunks of 10, 20 and 30 bytes."""
    chunks = {**_variable(b""), "transformedChunks": "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe"}
    table = decode_aiven_manifest(_manifest(chunkIndex=chunks, compression=True), "k").chunks
    assert table.stored_lengths == (10, 20, 30)
    assert table.lengths == (100, 100, 50)


def test_any_list_of_chunk_sizes_is_decoded() -> None:
    draw = random.Random(4)
    for _ in range(300):
        count, top = draw.randrange(1, 40), 2 ** draw.randrange(1, 31)
        sizes = [draw.randrange(1, top) for _ in range(count)]
        chunks = _variable(packed_sizes(sizes), originalFileSize=100 * count)
        table = decode_aiven_manifest(_manifest(chunkIndex=chunks, compression=True), "k").chunks
        assert list(table.stored_lengths or ()) == sizes


def test_a_mutated_aiven_manifest_never_returns_wrong_records(sample, key) -> None:
    """Changed, removed or doubled bytes give the same records, fewer of them, or an error of this project."""
    store, draw = MemoryStore(), random.Random(11)
    files = sample.segments[0]
    stem = put_aiven(store, files, number=0, compressed=True, key=key)
    whole = store.get(stem + ".rsm-manifest")
    for _ in range(80):
        damaged = bytearray(whole)
        at = draw.randrange(len(whole))
        match draw.randrange(4):
            case 0:
                damaged[at] = draw.randrange(256)
            case 1:
                del damaged[at : at + draw.randrange(1, 30)]
            case 2:
                damaged[at:at] = damaged[at : at + 20]
            case 3:
                damaged[at:at] = str(draw.choice([-1, 0, 2**31, 2**63, 10**25])).encode()
        store.put(stem + ".rsm-manifest", damaged)
        with _opened(store, key) as bucket:
            try:
                found = list(bucket.reader().records(NAME, bucket.reader().offsets(NAME)[0]))
            except LogError:
                continue
        assert {record.offset for record in found} <= {record.offset for record in sample.records}


def test_a_bucket_without_aiven_segments_has_no_topics() -> None:
    store = MemoryStore()
    with _opened(store) as bucket:
        assert bucket.topics() == []
        with pytest.raises(NotFound):
            bucket.reader().offsets(NAME)
    with RemoteLog(store, layout=LayoutOptions(layout="auto")) as bucket, pytest.raises(NotFound, match="no object"):
        bucket.topics()
    store.put("holiday.jpg", b"not a log")
    with RemoteLog(store, layout=LayoutOptions(layout="auto")) as bucket, pytest.raises(InvalidRequest, match="layout"):
        bucket.topics()


# Made by BouncyCastle 1.80, RSA/NONE/OAEPWithSHA3-512AndMGF1Padding, as in the plugin.
BOUNCY_KEY = """
MIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYwggSiAgEAAoIBAQCrJbEGNKzNntTi3aokugKv624lyxEGjvXTlAODJSbVACqvhREY
ojlEudASG10pjYjeqAz/lxWIjXTrcfF9VyIYhBNt6aVCJuBf95dolg7nBRolYxUL1/YeKCQuQRyeswetZ30/DohwK6Ix+nj2kq0/
OaPgsHLS/kC6tTt1KB0clAL/fy3WWbaaQ2SoO0if6tFIpwbQYWuWtdcioMe/bLkDavEg3HYd22HVYY9mbmQWLwN10o2NeY0DioXX
VaEyAZbxm82FnZREPX29oQuhILOdS/NE2axLrt7ggacUrSEXkaLcrKzQY3y4qCeroPhl0gVJomxipO9tXr4z07SIxLK3AgMBAAEC
ggEAGr7JorghlwJur0NHnvSojdhDPsm0j+tQVC+JuvlXz6p2gTZQvSJAw9Irx2CaVu+Ex5LIcTqphUzhzBdizx0KOX2OUbtU9XkA
0E5vTUtB6e08sEIDHHYzwnOwb8ACGnTMytbk1jFNtgXDk37aX2H9i+dUijzYvMs5z1OaBo1tuzTONcSb7Sk8ljAY4ZbeCM3FU9zI
R8OsEFZnin1fRzNLjkE9at6PQ6qvxYAyAyLnFbVLOY0B2pBoxjjrjjbCaAK7t2lW5y5iaa+0fGi2zSp7TgpAp0caqJuuF897byw7
uceVw+/rMLAueiptQSIz6OCx+y703lg8L/MU/TW/zCeBIQKBgQC5B7Lyys//Yx+pqkQ8umdw/tNaZe0gHA5a7VU/hrC7v2mdzQhI
upEhREy82+t+2jB02yluPhYGfG/49WP6KwPFsse9D56aSJ0oEvUcHmFUqvi02oYXTjRBZziE8n11dCXpLV8aqfQ6YomqusOzTsRd
KBv36KcwDe6xe4Jqe9KZIQKBgQDsytJGX8i2d6aI2EB4WfN02DQH44Z1f2q1qje0DQbCbEq5EoOSwT1xcT/UC4gznr7Un23bvkQV
in+UHZ1mN7F/dCtOYFeMda40CzPV3hO7+ExAo6YvGYqYYyMVMa4EWZyBKuFbyv0b9VXukp3gykyp3wlY1eZwCtSy8DdElCsY1wKB
gBNifRr2qIfnCKAr2G5MUR4DdH0aBJfCmLZp+u5m3Akvao8/tch400+a6jc3CxsFHOKBO3vzQTd4vfplKw5Ah2qk6kwiYMllJiHW
qptBi4zlRJ0d78JtTQg1GjTDeuVdP8OIH1iZyZ58SFP8sRgN/oCL/TIhy7I7I3Cwsd8aDdxBAoGAAPFp1vfor7lYQ3FBCHmrO4rk
4ico0Oz5+tE7uY7XuQx/W69UMNBuMzZ1P53wI+x87BHaeSaP1NohWfCoQND19wD6byx5DMknMXPd9/sTbws1GojMT6G1aJf0etAg
1kmZEvadwSTUzzix5+pTkKKdnYuS2PS5Hzcb076bKb3BUi8CgYAEnwP8P9cvedR/VcF6m3c2yGg+vn4oJPJLhSEuhoZMAPH+dCg3
DZRyEeG6c8Ij+tOisWuwjmERS7EuchZJAmSIs5lHzyyCrDOpAP5kMTWxwLmlJAlIfD1mz1HEYoDBtPlKZCwqceTNEJgAfxzS6T/p
VE44hJFHqpG3Pwmt+JpPLg==
"""
BOUNCY_WRAPPED = """
HnYndlYKTf/6j72cGr2eshGO/woExVTF+cKifttmGrFL2x67plHQfh/kL/3Rd6nBMzOzpk2HcNuQ5POyleaiHJhkNFcdA7pxLF6s
UA1KOsAQdmcEsRR0rSYxNz7h+JNh5nbrlK/gHTkqANOLpqNZflqXgBDG5tqp4Xru/mzl1/yZfnnduNxHZKw1BHthGYTC4m0FIXQ/
jSFy0ZFKX9GsCkl9bIbbvu84QOwRZXX/ru4+tNb8bskUtdN+tZLzM0cY68T7hq5JFz4RY3ITnbh9p9EJIA43Axm55Tkt21Qmel/d
GnDqh8jEqHqIgs1uUb+QZvrpBrk2Osr8ndD+F+SZ0A==
"""


def test_a_data_key_wrapped_by_the_plugins_library_is_unwrapped(tmp_path) -> None:
    lines = f"-----BEGIN PRIVATE KEY-----{BOUNCY_KEY}-----END PRIVATE KEY-----\n"
    (tmp_path / "key.pem").write_text(lines)
    sealing = Sealing(key_id="k", wrapped_key=base64.b64decode(BOUNCY_WRAPPED), aad=b"told")
    cipher = PrivateKeys({"k": str(tmp_path / "key.pem")}).cipher(sealing, "a manifest")
    gcm = AESGCM(bytes((at * 7 + 1) & 255 for at in range(32)))
    assert cipher.open(b"n" * 12 + gcm.encrypt(b"n" * 12, b"plain", b"told")) == b"plain"
