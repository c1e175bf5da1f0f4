"""``tiered dump --hex``: one field for every byte of a batch, with Kafka's name and the decoder's value."""

from __future__ import annotations

import json
import random
from itertools import chain
from pathlib import Path

import pytest
from legacy_samples import many

from local import kernels
from local.errors import Corrupt
from local.format.compression import decompress
from local.format.record import TimestampType
from local.records.batch import HEADER_BYTES, Codec, encode_batch
from tiered.cli.main import invoke
from tiered.inspect.hex_fields import HexField, batch_fields

T0 = 1_700_000_000_000
RECORDS: list[tuple[object, ...]] = [
    (b"key", b"value", T0),
    (None, b"a value without key, and long enough to take several lines of the table \x00\xff", T0 + 7),
    (b"tombstone", None, T0 + 3, (("name", b"of a header"), ("null", None), ("", b""))),
    (b"", b"", T0 - 5),
]


def sample(codec: Codec = Codec.NONE, **more: object) -> bytes:
    return bytes(encode_batch(RECORDS, base_offset=2**40, leader_epoch=7, codec=codec, **more))  # type: ignore[arg-type]


def fields_of(batch: bytes, position: int = 0) -> tuple[list[HexField], Corrupt | None]:
    found: list[HexField] = []
    try:
        for field in batch_fields(memoryview(batch), position):
            found.append(field)
    except Corrupt as error:
        return found, error
    return found, None


def bytes_of(fields: list[HexField], *, inflated: bool) -> bytes:
    """All bytes of the fields. Asserts that each byte appears once and at its position."""
    body, start = b"", None
    for field in (each for each in fields if each.is_inflated == inflated):
        start = field.at if start is None else start
        assert field.at == start + len(body), field
        body += field.data
    return body


@pytest.mark.parametrize("codec", Codec)
def test_hex_dump_has_each_byte_in_one_field_and_the_decoders_values(codec: Codec) -> None:
    batch = sample(codec)
    found, problem = fields_of(batch, 1000)
    assert problem is None
    assert found[0].at == 1000
    assert bytes_of(found, inflated=False) == batch
    if codec is not Codec.NONE:
        assert bytes_of(found, inflated=True) == decompress(codec, memoryview(batch)[HEADER_BYTES:], 1 << 20)
    told = {field.name: field.value for field in found if field.depth == 0}
    assert told["baseOffset"] == str(2**40)
    assert told["partitionLeaderEpoch"] == "7"
    assert told["crc"].endswith(": valid")
    assert told["recordsCount"] == "4"
    assert told["baseTimestamp"].startswith(f"{T0}: 2023-11-14T22:13:20")
    decoded = list(kernels.decode_columns(memoryview(batch)).records())
    keys = [field.data for field in found if field.name == "key"]
    assert keys == [record.key for record in decoded if record.key]
    values = [field.data for field in found if field.name == "value"]
    assert values == [record.value for record in decoded if record.value]
    names = [field.data.decode() for field in found if field.name == "headerKey"]
    assert names == [name for record in decoded for name, _ in record.headers if name]
    assert [field.value for field in found if field.name == "keyLength"] == ["3", "-1: null", "9", "0"]
    offsets = [field.value.rpartition(" ")[2] for field in found if field.name == "offsetDelta"]
    assert offsets == [str(record.offset) for record in decoded]


def test_attributes_are_shown_by_name() -> None:
    batch = sample(Codec.ZSTD, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=T0, is_transactional=True)
    (told,) = [field.value for field in fields_of(batch)[0] if field.name == "attributes" and field.depth == 0]
    assert told == f"{4 | 8 | 16}: zstd LogAppendTime isTransactional"


@pytest.mark.parametrize("magic", [0, 1])
def test_hex_dump_shows_messages_of_old_formats(magic: int) -> None:
    batch = kernels.scan_batches(many(magic, 3))
    data = many(magic, 3)
    for at, size in zip(batch.positions.tolist(), batch.sizes.tolist(), strict=True):
        found, problem = fields_of(data[at : at + size], at)
        assert problem is None
        assert bytes_of(found, inflated=False) == data[at : at + size]
        assert [field.name for field in found][:3] == ["offset", "messageSize", "crc"]
        assert next(field.value for field in found if field.name == "crc").endswith(": valid")
        assert ("timestamp" in {field.name for field in found}) == bool(magic)


@pytest.mark.parametrize("batch", [sample(), sample(Codec.GZIP), many(1, 1)], ids=["plain", "gzip", "magic 1"])
def test_hex_dump_of_any_damage_shows_every_byte_and_raises_only_corrupt(batch: bytes) -> None:
    rng = random.Random(7)
    damaged = 0
    for at in chain(range(17, len(batch)), rng.choices(range(17, len(batch)), k=300)):
        wrong = bytearray(batch)
        wrong[at] = rng.randrange(256)
        found, problem = fields_of(bytes(wrong))
        assert bytes_of(found, inflated=False) == wrong, at
        crc = next(field.value for field in found if field.name == "crc")
        assert crc.endswith(": valid") == (wrong == batch), at
        damaged += problem is not None
        assert any(field.name == "damaged" for field in found) <= (problem is not None)
    assert damaged > 20


def test_dump_hex_reads_files_partitions_and_objects_and_exits_4_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("".join(f"k{at}:value {at}\n" for at in range(60)))
    for words in (
        ["init"],
        ["topic", "create", "orders", "-X", "segment.bytes=1KiB", "-X", "remote.compression=zstd"],
        ["append", "orders", "lines", "-K", ":", "--batch", "5"],
        ["run", "--once"],
    ):
        assert invoke(["-q", *words]) == 0
    capfd.readouterr()

    def shown(*words: str) -> list[dict[str, object]]:
        assert invoke(["dump", *words, "--hex", "-o", "jsonl"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    log = sorted(Path("data/orders-0").glob("*.log"))[0]
    of_file = shown(str(log))
    assert b"".join(bytes.fromhex(str(each["bytes"])) for each in of_file) == log.read_bytes()
    (stored,) = Path("bucket").glob(f"orders-*/0/data/{log.stem}-*.log.zst")
    of_object = shown(stored.absolute().as_uri())
    assert of_object == of_file
    partition = shown("orders/0@17", "-n", "1", "--batches")
    assert {each["baseOffset"] for each in partition} == {15}
    assert len(partition) == 13
    assert invoke(["dump", str(log), "--hex", "-n", "1"]) == 0
    out = capfd.readouterr().out
    assert " 00000010  02                      magic                2\n" in out
    assert all(len(line) <= 80 for line in out.splitlines()[2:])
    body = bytearray(log.read_bytes())
    body[70] ^= 1
    Path("00000000000000000000.log").write_bytes(body)
    assert invoke(["dump", "00000000000000000000.log", "--hex"]) == 4
    out, said = capfd.readouterr()
    assert ": wrong, computed " in out
    assert "error: cannot dump a segment, " in said
    assert out.count("batch at ") > 3, "batches after the damaged one must be shown"
    for words, told in (
        (["data/orders-0/00000000000000000000.index"], "remove --hex"),
        (["orders/0", "--print"], "--print-data-log"),
    ):
        assert invoke(["dump", *words, "--hex"]) == 2
        assert told in capfd.readouterr().err


def test_record_length_that_contradicts_its_fields_is_damage() -> None:
    wrong = bytearray(encode_batch([(b"key", b"value", T0), (b"key", b"other", T0)]))
    wrong[HEADER_BYTES] -= 2  # one byte less, as a zigzag varint
    found, problem = fields_of(bytes(wrong))
    assert "it does not end at its declared length" in str(problem)
    assert found[-1].name == "damaged"
    assert bytes_of(found, inflated=False) == wrong
