"""``tiered dump``: stored data by batch, record or entry, under Kafka's field names.

It prints the readable part of a damaged file and then names the damage (exit 4).

| a ``.log`` that ends inside a batch | result |
|---|---|
| on the disk | a finding (exit 3): a crash tore it, recovery truncates it |
| in the bucket | damage (exit 4): an upload is atomic |
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tiered.cli.options import (
    FORMATS,
    GROUP,
    OWN_LAYOUT,
    Layout,
    argument,
    command,
    count_type,
    option,
    parse_partition_at,
    parse_time,
)
from tiered.cli.session import Session, now_ms, store_options

if TYPE_CHECKING:
    from tiered.inspect.dumping import Decoders, Filter
    from tiered.manager.manager import LogManager
    from tiered.read.bucket_reader import RemoteLog

_DECODERS = ("utf8", "hex", "base64", "json", "short", "integer", "long", "float", "double")
_OF_INDEXES = ("offset", "time", "txn", "producers", "epochs", "chunks")
_OF_MANIFEST = ("segments", "unlinked", "unlinked_pages", "spills")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    encoding: str = option(
        "--encoding", "Set the encoding of keys and values.", choices=["utf8", "base64", "hex"], default="utf8"
    )
    key_decoder: str | None = option(
        "--key-decoder", "Set the encoding of keys; default: --encoding.", choices=_DECODERS
    )
    value_decoder: str | None = option(
        "--value-decoder", "Set the encoding of values; default: --encoding.", choices=_DECODERS
    )
    offsets_decoder: bool = option("--offsets-decoder", "Decode records of __consumer_offsets.")
    transaction_log_decoder: bool = option("--transaction-log-decoder", "Decode records of __transaction_state.")

    @property
    def is_given(self) -> bool:
        return bool(self.key_decoder or self.value_decoder or self.offsets_decoder or self.transaction_log_decoder)

    def decoders(self) -> Decoders:
        from tiered.inspect.dumping import DECODERS, Decoders, decode_coordinator, decode_with
        from tiered.serve.groups import coordinator_records

        if self.offsets_decoder and self.transaction_log_decoder:
            raise click.UsageError("--offsets-decoder and --transaction-log-decoder exclude each other")
        if self.offsets_decoder:
            record = decode_coordinator(coordinator_records.decode_offsets_record)
        elif self.transaction_log_decoder:
            record = decode_coordinator(coordinator_records.decode_transaction_record)
        else:
            key, value = self.key_decoder or self.encoding, self.value_decoder or self.encoding
            record = decode_with(DECODERS[key], DECODERS[value])
        return Decoders(record=record, header=DECODERS[self.encoding])


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    from_offset: int | None = option("--from-offset", "Select records at or above this offset.", least=0)
    to_offset: int | None = option("--to-offset", "Select records below this offset.", least=0)
    key: str | None = option("--key", "Select records with exactly this key, written in --encoding.")
    key_prefix: str | None = option("--key-prefix", "Select records whose key begins with this.")
    since: str | None = option(
        "--since @TIME", "Select records at or after this time: @2026-11-20T12:00:00Z, @MS, @-2h."
    )
    until: str | None = option("--until @TIME", "Select records before this time.")

    def filter(self, encoding: str) -> Filter:
        from tiered.inspect.dumping import Filter, encode

        if self.key is not None and self.key_prefix is not None:
            raise click.UsageError("--key and --key-prefix exclude each other")
        key = self.key if self.key_prefix is None else self.key_prefix
        since_ms, until_ms = _time(self.since), _time(self.until)
        if self.from_offset is not None and self.to_offset is not None and self.to_offset <= self.from_offset:
            raise click.UsageError("--to-offset must be above --from-offset: the records below it are printed")
        if since_ms is not None and until_ms is not None and until_ms <= since_ms:
            raise click.UsageError("--until must be later than --since: the records before it are printed")
        return Filter(
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            since_ms=since_ms,
            until_ms=until_ms,
            key=None if key is None else encode(key, encoding),
            is_key_prefix=self.key_prefix is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a partition to dump: with `url` that bucket, else this node's disk and bucket."""

    options: dict[str, object] = option(
        "--option NAME=VALUE", "Option of the store of the URL.", callback=store_options
    )
    url: str | None = option("--remote URL", "Read a partition of this bucket only; needs no configuration.")
    topic_id: str | None = option("--topic-id ID", "Choose one of several topics of this name in that bucket.")
    layout: Layout = GROUP

    def open(self, session: Session, topic: str) -> AbstractContextManager[LogManager | RemoteLog]:
        if self.url is None:
            return session.manager(read_only=True, is_hasty=True)
        return self.layout.open_bucket(session, self.url, self.options, topic, self.topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    target: str = argument("FILE|URL|TOPIC/PARTITION[@OFFSET]")
    output: str | None = option(
        "-o, --output", "Set the output format. text: the lines of Kafka's own tool.", choices=[*FORMATS, "text"]
    )
    batches: bool = option("--batches", "Print batches only, in any output format.")
    by_record: bool = option("--records", "Print records as JSON lines, without control records.")
    by_index: bool = option("--index", "Print the offset index of the segment instead of its batches.")
    by_byte: bool = option("--hex", "Print every byte with the name of its field; with --batches headers only.")
    deep_iteration: bool = option("--deep-iteration, --deep", "Print every batch and its records.")
    print_data_log: bool = option("--print-data-log, --print", "Print keys and values too; implies --deep-iteration.")
    count: int | None = option("-n, --count", "Stop after this many rows.", type=count_type(1))
    decoding: Decoding = GROUP
    selection: Selection = GROUP
    index_sanity_check: bool = option("--index-sanity-check", "Check whether an index is well formed, without its log.")
    verify_index_only: bool = option("--verify-index-only", "Compare an index with its log, print nothing else.")
    section: str | None = option(
        "--section", "Print one section of an .indexes object or of a manifest.", choices=(*_OF_INDEXES, *_OF_MANIFEST)
    )
    place: Place = GROUP

    @property
    def prints_data(self) -> bool:
        return self.print_data_log or self.decoding.is_given

    @property
    def is_deep(self) -> bool:
        return not self.batches and (
            self.by_record or self.deep_iteration or self.prints_data or (self.output == "jsonl" and not self.by_byte)
        )

    @property
    def form(self) -> str:
        return self.output or ("jsonl" if self.by_record else "text" if self.is_deep else "table")


@command("dump", example="dump orders/0 --records --from-offset 100 --to-offset 110")
def dump(session: Session, request: Request = GROUP) -> int:
    """Print a segment, an index, a snapshot or a checkpoint of the disk or a bucket, or a partition of both tiers."""
    from tiered.cli.data.dump_printing import dump_file, dump_partition

    if request.by_index:
        request = _index_request(session, request)
    place = request.place
    if place.url is not None:
        return dump_partition(session, request)
    if place.topic_id or place.layout.is_given:
        raise click.UsageError("--topic-id, --layout, --layout-prefix and --layout-key require --remote")
    if request.by_byte and (request.by_record or request.deep_iteration or request.prints_data):
        raise click.UsageError("--hex prints all of a record; remove --records, --deep-iteration, --print-data-log")
    if place.options and "://" not in request.target:
        raise click.UsageError("--option requires --remote URL or the url of an object")
    return (dump_file if _is_file(request.target) else dump_partition)(session, request)


def _index_request(session: Session, request: Request) -> Request:
    """The request for the index of the segment that the target names or that holds its offset."""
    from tiered.inspect.dump_sources import index_of_offset, index_of_segment

    if request.batches or request.is_deep or request.by_byte or request.section:
        raise click.UsageError("--index prints an index: remove the options for batches, records, bytes or a --section")
    place = request.place
    if place.url is None and _is_file(request.target):
        target, section = index_of_segment(request.target)
    else:
        partition, offset = parse_partition_at(request.target)
        url = place.url if place.url is not None else session.config().remote_url
        with place.open(session, partition.topic) as bucket:
            target, section = index_of_offset(bucket.reader().source(partition), url, offset)
    place = replace(place, url=None, topic_id=None, layout=OWN_LAYOUT)
    return replace(request, target=target, section=section, by_index=False, place=place)


def _is_file(target: str) -> bool:
    from tiered.inspect.dump_sources import kind_of

    return "://" in target or kind_of(target) is not None or os.path.isfile(target)


def _time(text: str | None) -> int | None:
    return None if text is None else parse_time(text.removeprefix("@"), now_ms())
