"""The options of Spark's formats ``tiered`` and ``tiered-segments``: checks, and the typed options.

``options.toml`` declares them. Names and meanings are those of Spark's Kafka source (`KafkaSourceProvider`); names
ignore case. A timestamp has precedence over offsets by timestamp, and these over offsets.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, Flag, auto
from functools import reduce
from importlib.resources import files
from operator import or_
from typing import Any

import msgspec

from local.errors import InvalidRequest
from local.names import TopicPartition, check_topic, check_topic_id
from policies.cost.prices import BUILT_IN, PriceTable
from remote.external.external_layout import LayoutOptions
from remote.gc.pins import Pin
from remote.keys import check_view
from tiered.config.properties import IMMUTABLE, PROPERTIES, canonical, parse
from tiered.config.units import parse_bytes, parse_ms
from tiered.jobs.job_bucket import Bucket
from tiered.stores.configured_store import OBJECT_SETTINGS

PIN_MS = 3_600_000  # tasks renew the pin: it must only outlive a time in which no task begins or reads
EARLIEST, LATEST = -2, -1
STORE_SETTINGS = (*OBJECT_SETTINGS, IMMUTABLE)  # a job honours these too, though they are not per topic


class Use(Flag):
    """Where an option has an effect: a batch read, a stream's read, the table of segments, a write."""

    BATCH = auto()
    STREAM = auto()
    SEGMENTS = auto()
    WRITE = auto()


class Kind(Enum):
    TEXT = "text"
    FLAG = "true or false"
    WORD = "one of"
    COUNT = "a number above zero"
    BYTES = "a size such as 64MiB"
    MS = "a duration such as 6h"
    TIME = "ms since the epoch"
    JSON = "a JSON object"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is text, as a user would write it; None without one."""

    name: str
    kind: Kind
    uses: Use
    default: str | None = None
    help: str = ""
    choices: tuple[str, ...] = ()
    is_secret: bool = False  # the value is never shown

    @property
    def words(self) -> tuple[str, ...]:
        flags = ("true", "false") if self.default == "true" else ("false", "true")
        return flags if self.kind is Kind.FLAG else self.choices


_READ, _WRITE = Use.BATCH | Use.STREAM, Use.WRITE


def _declared(row: dict[str, Any]) -> Option:
    uses = reduce(or_, (Use[name] for name in row["uses"]))
    return Option(**{**row, "kind": Kind[row["kind"]], "uses": uses, "choices": tuple(row.get("choices", ()))})


_FILE = files(__package__).joinpath("options.toml")
TABLE = tuple(map(_declared, tomllib.loads(_FILE.read_text(encoding="utf-8"))["option"]))
OPTIONS: dict[str, Option] = {option.name: option for option in TABLE}
# Names that have no effect, in lower case: options of Kafka's source, and Spark's own options of a stream.
_IGNORED = ("fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix", "kafkaconsumer.polltimeoutms")
_OF_SPARK = ("checkpointlocation", "queryname", "triggeravailablenow")
_PARSERS: dict[Kind, Callable[[str], int | None]] = {Kind.COUNT: int, Kind.BYTES: parse_bytes, Kind.MS: parse_ms}


class GivenOptions:
    """The options that were given for one use. Every method raises InvalidRequest, never with a secret."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        """Raises InvalidRequest for an unknown name, with the nearest known one."""
        doing = {Use.WRITE: "write", Use.SEGMENTS: "read segments"}.get(use, "read")
        self._attempt = f"cannot {doing} with Spark"
        uses = _READ if use in _READ else use  # a batch ignores the options of streams
        known = {option.name.lower(): option.name for option in TABLE if option.uses & uses}
        self._values: dict[str, str] = {}
        self.properties: dict[str, str] = {}  # of a topic, for a write
        for name, value in given.items():
            low = name.lower()
            if low in known:
                self._values[known[low]] = value
            elif use is Use.WRITE and low in PROPERTIES:
                self._take_property(name, value)
            elif not _is_ignored(low, use):
                names = [*known, *(PROPERTIES if use is Use.WRITE else ())]
                near = next(iter(get_close_matches(low, names, n=1)), "")
                hint = known.get(near, near) or None
                raise InvalidRequest(f"{self._attempt}, unknown option", option=name, did_you_mean=hint)

    def _take_property(self, name: str, value: str) -> None:
        low = name.lower()
        if not PROPERTIES[low].is_per_topic and low not in STORE_SETTINGS:
            raise InvalidRequest(f"{self._attempt}, a job does not support settings of a node", option=name)
        parse(low, value, {"option": name})
        self.properties[low] = canonical(low, value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name, OPTIONS[name].default)

    def word(self, name: str) -> str:
        value, words = (self.text(name) or "").strip().lower(), OPTIONS[name].words
        if value not in words:
            raise self.wrong(name, "it is not one of " + ", ".join(words), value)
        return value

    def is_on(self, name: str) -> bool:
        return self.word(name) == "true"

    def limit(self, name: str) -> int | None:
        """A number, size or duration above zero; None without one."""
        return None if self.text(name) is None else self.number(name)

    def number(self, name: str, kind: Kind | None = None) -> int:
        """As `limit`, for an option that is given or has a default; `kind` replaces the option's own kind."""
        text, option = self.text(name) or "", OPTIONS[name]
        is_wellformed = option.uses is not _WRITE or (text.isascii() and text.isdigit())  # a write takes digits only
        try:
            value = _PARSERS[kind or option.kind](text.strip()) if is_wellformed else None
        except ValueError:
            value = None
        if value is None or value < 1:
            raise self.wrong(name, "it is not a number above zero", text)
        return value

    def json(self, name: str) -> dict[str, object]:
        text, is_secret = self.text(name) or "", OPTIONS[name].is_secret
        try:
            value = json.loads(text)
        except ValueError as error:  # of a secret, the decoder's message quotes the text
            raise self.wrong(name, "it is not JSON", text) from (None if is_secret else error)
        if not isinstance(value, dict):
            raise self.wrong(name, "it is not a JSON object", text)
        return value

    def wrong(self, name: str, problem: str, value: str | None) -> InvalidRequest:
        shown = None if OPTIONS[name].is_secret else value
        return InvalidRequest(f"{self._attempt}, invalid option, {problem}", option=name, value=shown)

    def bucket(self) -> Bucket:
        urls = [self._values[name] for name in ("path", "url") if name in self]
        if len(urls) != 1 or not urls[0]:
            wrong = f"{self._attempt}, exactly one of the options path and url is required"
            raise InvalidRequest(wrong, given=len(urls))
        store, ring, directory = self.json("storeOptions"), self.text("keyRing"), self.text("workDirectory")
        return Bucket(url=urls[0], options=store, key_ring=ring, settings=self.properties, work_directory=directory)

    def topic_id(self) -> str | None:
        text = self.text("topicId")
        return None if text is None else check_topic_id(text)


def _is_ignored(low: str, use: Use) -> bool:
    if use in _READ:
        return low in _IGNORED or low.startswith("kafka.")
    return use is Use.WRITE and low in _OF_SPARK


class BoundKind(Enum):
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or end of a read: one value for all, or one for each topic or partition. Timestamps in ms."""

    kind: BoundKind = BoundKind.OFFSET
    everywhere: int | None = None
    by_topic: Mapping[str, int] = field(default_factory=dict)
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)

    def value_of(self, partition: TopicPartition) -> int | None:
        if self.everywhere is not None:
            return self.everywhere
        return self.by_partition.get(partition, self.by_topic.get(partition.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one ``load()``. Exactly one of `topics`, `pattern` and `partitions` is not None.

    `view` None: the log alone. `split_bytes` None: by the size of the read. `pin_ms` None: no pins. `pins`: manifests
    that are already pinned, by prefix.
    """

    bucket: Bucket
    topics: tuple[str, ...] | None
    pattern: str | None
    partitions: tuple[TopicPartition, ...] | None
    topic_id: str | None
    start: Bound
    end: Bound
    latest_without_match: bool
    fail_on_data_loss: bool
    include_headers: bool
    partitions_min: int | None
    split_bytes: int | None
    records_max: int | None
    is_committed: bool
    view: str | None
    pin_ms: int | None
    must_pin: bool
    pins: Mapping[str, Pin]
    layout: LayoutOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of one stream: a read without an end, and limits of a micro-batch; None for no limit."""

    read: ReadOptions
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int = 0
    delay_max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsOptions:
    read: ReadOptions
    prices: PriceTable = field(default=BUILT_IN, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one write. `span` is None for offsets without gaps; `settings` are properties of the topic."""

    bucket: Bucket
    topic: str
    topic_id: str | None
    create_partitions: int | None
    job_id: str | None
    takes_leadership: bool
    span: int | None
    settings: Mapping[str, str]


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read; options of streams are ignored. Raises InvalidRequest for a wrong option."""
    return _read_options(_read(given, Use.BATCH))


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises as `parse_options`, and for options of batch reads alone, such as an end."""
    options = _read(given, Use.STREAM)
    for option in TABLE:
        if Use.BATCH in option.uses and Use.STREAM not in option.uses and option.name in options:
            if option.name != "layout":
                raise InvalidRequest("cannot read with Spark, streams do not support this option", option=option.name)
            # External software may upload in any order: a late segment would already have been skipped as a gap.
            attempt = "cannot read a stream from an external bucket, it does not state whether earlier segments are "
            fix = "use batch reads of ranges, or tiered import and a stream of the result"
            raise InvalidRequest(f"{attempt}still to be copied", option="layout", fix=fix)
    return StreamOptions(
        read=_read_options(options, is_stream=True),
        offsets_max=options.limit("maxOffsetsPerTrigger"),
        bytes_max=options.limit("maxBytesPerTrigger"),
        offsets_min=options.limit("minOffsetsPerTrigger") or 0,
        delay_max_ms=options.number("maxTriggerDelay"),
    )


def parse_segments_options(given: Mapping[str, str]) -> SegmentsOptions:
    """The options of a table of segments. Raises InvalidRequest for a wrong option, and as `load_prices`."""
    if not any(name.lower() in ("subscribe", "subscribepattern", "assign") for name in given):
        given = {**given, "subscribePattern": ".*"}
    options = GivenOptions(given, Use.SEGMENTS)
    read, prices = _read_options(options), options.text("prices")
    if prices is None:
        return SegmentsOptions(read=read)
    from tiered.config.price_file import load_prices

    return SegmentsOptions(read=read, prices=load_prices(prices))


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Raises InvalidRequest with the name of a wrong option."""
    options = GivenOptions(given, Use.WRITE)
    bucket, topic = options.bucket(), options.text("topic")
    if topic is None:
        raise InvalidRequest("cannot write with Spark, the option topic is required")
    is_dense = options.word("offsets") == "dense"
    if is_dense and "offsetsPerTask" in options:
        raise InvalidRequest("cannot write with Spark, offsetsPerTask requires offsets=ranges")
    return WriteOptions(
        bucket=bucket,
        topic=check_topic(topic),
        topic_id=options.topic_id(),
        create_partitions=options.limit("createPartitions"),
        job_id=options.text("jobId") or None,
        takes_leadership=options.is_on("takeLeadership"),
        span=None if is_dense else options.number("offsetsPerTask"),
        settings=options.properties,
    )


def includes_headers(given: Mapping[str, str]) -> bool:
    """Whether the column ``headers`` is requested. Raises InvalidRequest for names and topics as `parse_options`."""
    options = _read(given, Use.BATCH)
    _chosen_topics(options)
    return options.is_on("includeHeaders")


def _read(given: Mapping[str, str], use: Use) -> GivenOptions:
    """The given options of a read. Raises InvalidRequest for unknown ones, and for tables of Spark's catalog."""
    if not given or "provider" in {name.lower() for name in given}:
        fix = "CREATE TEMPORARY VIEW name USING tiered OPTIONS (path '...', subscribe '...')"
        attempt = "a table of the Spark catalog stores no options of a Python source, create a temporary view"
        attempt = attempt if given else f"no option is set, path and subscribe are required; {attempt}"
        raise InvalidRequest(f"cannot read with Spark, {attempt}", fix=fix)
    return GivenOptions(given, use)


def _read_options(options: GivenOptions, *, is_stream: bool = False) -> ReadOptions:
    topics, pattern, partitions = _chosen_topics(options)
    return ReadOptions(
        bucket=options.bucket(),
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        topic_id=options.topic_id(),
        start=_bound(options, "starting", EARLIEST, is_stream=is_stream),
        end=_bound(options, "ending", LATEST),
        latest_without_match=options.word("startingOffsetsByTimestampStrategy") == "latest",
        fail_on_data_loss=options.is_on("failOnDataLoss"),
        include_headers=options.is_on("includeHeaders"),
        partitions_min=options.limit("minPartitions"),
        split_bytes=options.limit("splitBytes"),
        records_max=options.limit("maxRecordsPerPartition"),
        is_committed=options.word("kafka.isolation.level") == "read_committed",
        view=_view(options),
        pin_ms=None if is_stream else _pin_ms(options),
        must_pin=(options.text("pin") or "").strip().lower() != "auto",
        pins=_pins(options),
        layout=_layout(options),
    )


def _chosen_topics(
    options: GivenOptions,
) -> tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]:
    selections = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(selections) != 1:
        needed = "cannot read with Spark, exactly one of subscribe, subscribePattern and assign is required"
        raise InvalidRequest(needed, given=",".join(selections) or "none")
    value = options.text(selections[0]) or ""
    match selections[0]:
        case "subscribe":
            names = [name.strip() for name in value.split(",")]
            if not any(names):
                raise options.wrong("subscribe", "it names no topic", value)
            return tuple(dict.fromkeys(check_topic(name) for name in names if name)), None, None
        case "subscribePattern":
            if not value.strip():
                raise options.wrong("subscribePattern", "the pattern is empty; .* reads every topic", value)
            try:
                re.compile(value)
            except re.error as error:
                raise options.wrong("subscribePattern", str(error), value) from error
            return None, value, None
    found = []
    for topic, numbers in options.json("assign").items():
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise options.wrong("assign", 'it is not of the form {"topic":[0,1]}', value)
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise options.wrong("assign", "it names no partition", value)
    return None, None, tuple(dict.fromkeys(found))


def _bound(options: GivenOptions, side: str, default: int, *, is_stream: bool = False) -> Bound:
    if (text := options.text(f"{side}Timestamp")) is not None:
        try:
            return Bound(kind=BoundKind.TIMESTAMP, everywhere=int(text))
        except ValueError as error:
            raise options.wrong(f"{side}Timestamp", "it is not a whole number of milliseconds", text) from error
    if (name := f"{side}OffsetsByTimestamp") in options:
        return Bound(kind=BoundKind.TIMESTAMP, by_partition=_by_partition(options, name, lowest=0))
    name = f"{side}Offsets"
    text = (options.text(name) or "").strip() if name in options else ""
    if is_stream and text.lower() in ("", "earliest", "latest"):
        return Bound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    word = "earliest" if default == EARLIEST else "latest"
    if text.lower() in ("", word):
        return Bound(everywhere=default)
    if text.lower() in ("earliest", "latest"):
        raise options.wrong(name, f"a batch read takes only {word} or JSON", text)
    by_topic = _by_topic(options, name)
    by_partition = _by_partition(options, name, lowest=EARLIEST, passed_over=by_topic)
    if not is_stream and -3 - default in {*by_partition.values(), *by_topic.values()}:  # the other one of -2 and -1
        raise options.wrong(name, f"{-3 - default} makes a batch read empty, {default} is {word}", text)
    return Bound(by_topic=by_topic, by_partition=by_partition)


def _by_topic(options: GivenOptions, name: str) -> dict[str, int]:
    """Topics with one bound for all their partitions: ``{"a":"earliest"}``. Source: SPARK-58774."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    found = {topic: value for topic, value in options.json(name).items() if isinstance(value, str)}
    if not all(value.lower() in words for value in found.values()):
        raise options.wrong(name, 'for a whole topic only "earliest" and "latest" are allowed', options.text(name))
    return {topic: words[value.lower()] for topic, value in found.items()}


def _by_partition(
    options: GivenOptions, name: str, *, lowest: int, passed_over: Collection[str] = ()
) -> dict[TopicPartition, int]:
    wrong = options.wrong(name, 'it is not of the form {"topic":{"0":23}}', options.text(name))
    found = {}
    for topic, values in options.json(name).items():
        if topic in passed_over:
            continue
        if not isinstance(values, dict):
            raise wrong
        for number, value in values.items():
            if not (number.isascii() and number.isdigit()) or type(value) is not int or value < lowest:
                raise wrong
            found[TopicPartition(topic, int(number))] = value
    return found


def _layout(options: GivenOptions) -> LayoutOptions:
    files = options.json("layoutKeys")
    if not all(isinstance(path, str) for path in files.values()):
        raise options.wrong("layoutKeys", 'it is not of the form {"id":"/file"}', options.text("layoutKeys"))
    return LayoutOptions(
        layout=options.word("layout"),
        prefixes=tuple((options.text("layoutPrefixes") or "").split(",")),
        private_keys={key: str(path) for key, path in files.items()},
    )


def _view(options: GivenOptions) -> str | None:
    if options.is_on("readCompacted"):
        return check_view(options.text("view") or "")
    if "view" in options:
        raise options.wrong("view", "it needs readCompacted=true", options.text("view"))
    return None


def _pin_ms(options: GivenOptions) -> int | None:
    match (options.text("pin") or "").strip().lower():
        case "auto":
            return PIN_MS
        case "none":
            return None
    return options.number("pin", Kind.MS)


def _pins(options: GivenOptions) -> dict[str, Pin]:
    try:
        return msgspec.convert(options.json("pins"), dict[str, Pin])
    except msgspec.ValidationError as error:
        wrong = "it is not a result of tiered.spark.source.pinned_snapshots.pinned"
        raise options.wrong("pins", wrong, options.text("pins")) from error
