"""The options of ``spark.read.format("tiered")``: those of Spark's Kafka source, and the bucket's.

| option | value |
|---|---|
| ``path`` or ``url`` | ``s3://bucket/prefix``, ``file:///directory``; required |
| ``storeOptions`` | JSON object for the store's client. Secrets are better left to the workers' environment |
| ``subscribe``, ``subscribePattern``, ``assign`` | one of: ``a,b``; a pattern for whole names; ``{"a":[0,1]}`` |
| ``keyRing`` | a file of keys on every worker, for encrypted segments; or its environment names one |
| ``topicId`` | selects the topic if the bucket has two of one name |
| ``layout`` | the bucket's layout: ``tiered aiven local-tiered-storage pinterest logs auto`` |
| ``layoutPrefixes`` / ``layoutKeys`` | Aiven's: ``key.prefix``, several with commas / RSA keys, ``{"id":"/file"}`` |
| ``startingOffsets`` / ``endingOffsets`` | ``earliest`` / ``latest`` or ``{"a":{"0":23},"b":"earliest"}``; -2, -1 |
| ``startingTimestamp`` / ``endingTimestamp`` | ms: from the first record at or after it / up to that record |
| ``startingOffsetsByTimestamp`` / ``endingOffsetsByTimestamp`` | ms for each partition, ``{"a":{"0":1000}}`` |
| ``startingOffsetsByTimestampStrategy`` | without such a record: ``error`` (default) or ``latest`` |
| ``failOnDataLoss`` | offsets outside the log, deleted segments: error (``true``, default) or skipped (``false``) |
| ``includeHeaders`` | ``true`` adds the column ``headers`` |
| ``minPartitions`` / ``splitBytes`` | minimum number of tasks / maximum bytes of batches in each (64MiB) |
| ``maxRecordsPerPartition`` | maximum number of offsets in a task |
| ``kafka.isolation.level`` | ``read_uncommitted`` (default) or ``read_committed`` |
| ``readCompacted`` / ``view`` | ``true``: a compacted view below its horizon, then the log / its name |
| ``pin`` | life of the pins after the last renewal: ``auto`` (default, 1h), ``6h``, ``none`` |
| ``pins`` | manifests pinned by `tiered.spark.source.pinned_snapshots.pinned` |
| ``maxOffsetsPerTrigger`` / ``maxBytesPerTrigger`` | of a stream: maximum of one micro-batch |
| ``minOffsetsPerTrigger`` / ``maxTriggerDelay`` | of a stream: wait for so many offsets / at most so long (15m) |

As in Kafka's source a timestamp has precedence over offsets by timestamp, and these over offsets. Names ignore case.
Options for a broker's client (``kafka.*`` and a few more) are accepted and have no effect. A stream begins at
``latest`` by default, and has no end and no pins. Source: Spark `KafkaSourceProvider`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum

from local.errors import InvalidRequest
from local.names import TopicPartition, check_topic, check_topic_id
from remote.external.external_layout import OURS, WORDS, LayoutOptions
from remote.keys import check_view
from remote.manifest.view import DEFAULT_VIEW
from tiered.config.units import parse_bytes, parse_ms

SPLIT_BYTES = 64 << 20
TRIGGER_DELAY_MS = 15 * 60_000
PIN_MS = 3_600_000  # tasks renew the pin: it must only outlive a time in which no task begins or reads
EARLIEST, LATEST = -2, -1

NAMES = (
    "path",
    "url",
    "storeOptions",
    "keyRing",
    "topicId",
    "layout",
    "layoutPrefixes",
    "layoutKeys",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "splitBytes",
    "maxRecordsPerPartition",
    "readCompacted",
    "view",
    "pin",
    "pins",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_ISOLATION = "kafka.isolation.level"
_IGNORED = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)


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
        """The value for a partition; None if it has none."""
        if self.everywhere is not None:
            return self.everywhere
        return self.by_partition.get(partition, self.by_topic.get(partition.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one ``load()``. Exactly one of `topics`, `pattern` and `partitions` is not None.

    `view` is the compacted view to read, None for the log alone. `pin_ms` None means no pins. With `must_pin` a bucket
    without write access is an error. `pins` are already pinned manifests, by prefix.
    """

    url: str
    store_options: Mapping[str, object] = field(repr=False)
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None
    topic_id: str | None = None
    key_ring: str | None = None
    start: Bound
    end: Bound
    latest_without_match: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    partitions_min: int | None = None
    split_bytes: int = SPLIT_BYTES
    records_max: int | None = None
    is_committed: bool = False
    view: str | None = None
    pin_ms: int | None = PIN_MS
    must_pin: bool = False
    pins: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    layout: LayoutOptions = OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of one stream: a read without an end, and limits of a micro-batch; None for no limit."""

    read: ReadOptions
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int = 0
    delay_max_ms: int = TRIGGER_DELAY_MS


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read, checked and parsed; options of streams are ignored.

    Raises InvalidRequest with the name of a wrong option.
    """
    return _read_options(_known(given), is_stream=False)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises as `parse_options`, and for an end."""
    options = _known(given)
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pins", "readCompacted"):
        if name.lower() in options:
            raise InvalidRequest("cannot read with Spark, streams do not support this option", option=name)
    if "layout" in options:
        # External software may upload in any order: a late segment would already have been skipped as a gap.
        attempt = (
            "cannot read a stream from an external bucket, it does not state whether earlier "
            "segments are still to be copied"
        )
        raise InvalidRequest(
            attempt, option="layout", fix="use batch reads of ranges, or tiered import and a stream of the result"
        )
    delay = options.get("maxtriggerdelay", str(TRIGGER_DELAY_MS))
    return StreamOptions(
        read=_read_options({**options, "pin": "none"}, is_stream=True),
        offsets_max=_counted(options, "maxOffsetsPerTrigger"),
        bytes_max=_counted(options, "maxBytesPerTrigger", parse_bytes),
        offsets_min=_counted(options, "minOffsetsPerTrigger") or 0,
        delay_max_ms=_count("maxTriggerDelay", delay, parse_ms),
    )


def _read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    topics, pattern, partitions = _chosen_topics(options)
    urls = [options[name] for name in ("path", "url") if name in options]
    if len(urls) != 1 or not urls[0]:
        raise InvalidRequest(
            "cannot read with Spark, exactly one of the options path and url is required", given=len(urls)
        )
    return ReadOptions(
        url=urls[0],
        store_options=_object("storeOptions", options.get("storeoptions", "{}"), secret=True),
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        topic_id=check_topic_id(options["topicid"]) if "topicid" in options else None,
        key_ring=options.get("keyring"),
        start=_bound(options, "starting", EARLIEST, is_stream=is_stream),
        end=_bound(options, "ending", LATEST),
        latest_without_match=_word(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fail_on_data_loss=_word(options, "failOnDataLoss", ("true", "false")) == "true",
        include_headers=_word(options, "includeHeaders", ("false", "true")) == "true",
        partitions_min=_counted(options, "minPartitions"),
        split_bytes=_count("splitBytes", options.get("splitbytes", str(SPLIT_BYTES)), parse_bytes),
        records_max=_counted(options, "maxRecordsPerPartition"),
        is_committed=_word(options, _ISOLATION, ("read_uncommitted", "read_committed")) == "read_committed",
        view=_view(options),
        pin_ms=_pin_ms(options),
        must_pin=options.get("pin", "auto").strip().lower() != "auto",
        pins=_pins(options.get("pins", "{}")),
        layout=_layout(options),
    )


def check_no_table(given: Mapping[str, str]) -> None:
    """Raises InvalidRequest if Spark's catalog creates or reads a table.

    The catalog stores no options of a Python source. `CREATE TABLE` passes its own properties with the options, and a
    read of that table passes nothing at all.
    """
    if not given or "provider" in {name.lower() for name in given}:
        fix = "CREATE TEMPORARY VIEW name USING tiered OPTIONS (path '...', subscribe '...')"
        attempt = "a table of the Spark catalog stores no options of a Python source, create a temporary view"
        attempt = attempt if given else f"no option is set, path and subscribe are required; {attempt}"
        raise InvalidRequest(f"cannot read with Spark, {attempt}", fix=fix)


def includes_headers(given: Mapping[str, str]) -> bool:
    """Whether the column ``headers`` is requested.

    Raises InvalidRequest for names and topics as `parse_options`.
    """
    options = _known(given)
    _chosen_topics(options)
    return _word(options, "includeHeaders", ("false", "true")) == "true"


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options under lower-cased names.

    Raises InvalidRequest for an unknown name, with the nearest known one, and for a table of Spark's catalog.
    """
    check_no_table(given)
    real = {name.lower(): name for name in NAMES}
    ignored = {name.lower() for name in _IGNORED}
    options = {}
    for name, value in given.items():
        low = name.lower()
        if low in real or low == _ISOLATION:
            options[low] = value
        elif low not in ignored and not low.startswith("kafka."):
            near = get_close_matches(low, real, n=1)
            hint = real[near[0]] if near else None
            raise InvalidRequest("cannot read with Spark, unknown option", option=name, did_you_mean=hint)
    return options


def _chosen_topics(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]:
    """(topics, pattern, partitions), of which one is not None."""
    ways = [name for name in ("subscribe", "subscribepattern", "assign") if name in options]
    if len(ways) != 1:
        needed = "cannot read with Spark, exactly one of subscribe, subscribePattern and assign is required"
        raise InvalidRequest(needed, given=",".join(ways) or "none")
    value = options[ways[0]]
    match ways[0]:
        case "subscribe":
            names = [name.strip() for name in value.split(",")]
            if not any(names):
                raise _wrong("subscribe", value, "it names no topic")
            return tuple(dict.fromkeys(check_topic(name) for name in names if name)), None, None
        case "subscribepattern":
            if not value.strip():
                raise _wrong("subscribePattern", value, "the pattern is empty; .* reads every topic")
            try:
                re.compile(value)
            except re.error as error:
                raise _wrong("subscribePattern", value, str(error)) from error
            return None, value, None
    found = []
    for topic, numbers in _object("assign", value).items():
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise _wrong("assign", value, 'it is not of the form {"topic":[0,1]}')
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise _wrong("assign", value, "it names no partition")
    return None, None, tuple(dict.fromkeys(found))


def _bound(options: Mapping[str, str], side: str, default: int, *, is_stream: bool = False) -> Bound:
    """`side` is ``starting`` or ``ending``."""
    if (text := options.get(f"{side}timestamp")) is not None:
        return Bound(kind=BoundKind.TIMESTAMP, everywhere=_integer(f"{side}Timestamp", text))
    if (text := options.get(f"{side}offsetsbytimestamp")) is not None:
        name = f"{side}OffsetsByTimestamp"
        return Bound(kind=BoundKind.TIMESTAMP, by_partition=_by_partition(name, text, lowest=0))
    text = options.get(f"{side}offsets", "").strip()
    if is_stream and text.lower() in ("", "earliest", "latest"):
        return Bound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    word = "earliest" if default == EARLIEST else "latest"
    if text.lower() in ("", word):
        return Bound(everywhere=default)
    if text.lower() in ("earliest", "latest"):
        raise _wrong(f"{side}Offsets", text, f"a batch read takes only {word} or JSON")
    by_topic = _by_topic(f"{side}Offsets", text)
    by_partition = _by_partition(f"{side}Offsets", text, lowest=EARLIEST, passed_over=by_topic)
    if not is_stream and -3 - default in {*by_partition.values(), *by_topic.values()}:  # the other one of -2 and -1
        raise _wrong(f"{side}Offsets", text, f"{-3 - default} makes a batch read empty, {default} is {word}")
    return Bound(by_topic=by_topic, by_partition=by_partition)


def _by_topic(name: str, text: str) -> dict[str, int]:
    """Topics with one bound for all their partitions: ``{"a":"earliest"}``. Source: SPARK-58774."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    found = {topic: value for topic, value in _object(name, text).items() if isinstance(value, str)}
    if not all(value.lower() in words for value in found.values()):
        raise _wrong(name, text, 'for a whole topic only "earliest" and "latest" are allowed')
    return {topic: words[value.lower()] for topic, value in found.items()}


def _by_partition(name: str, text: str, *, lowest: int, passed_over: Collection[str] = ()) -> dict[TopicPartition, int]:
    found = {}
    for topic, values in _object(name, text).items():
        if topic in passed_over:
            continue
        if not isinstance(values, dict):
            raise _wrong(name, text, 'it is not of the form {"topic":{"0":23}}')
        for number, value in values.items():
            if not (number.isascii() and number.isdigit()) or type(value) is not int or value < lowest:
                raise _wrong(name, text, 'it is not of the form {"topic":{"0":23}}')
            found[TopicPartition(topic, int(number))] = value
    return found


def _object(name: str, text: str, *, secret: bool = False) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        # The text of storeOptions may hold a password; so may the decoder's message, which quotes it.
        raise _wrong(name, None if secret else text, "it is not JSON") from (None if secret else error)
    if not isinstance(value, dict):
        raise _wrong(name, None if secret else text, "it is not a JSON object")
    return value


def _word(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """The option's value in lower case; by default the first of `words`."""
    value = options.get(name.lower(), words[0]).strip().lower()
    if value not in words:
        raise _wrong(name, value, "it is not one of " + ", ".join(words))
    return value


def _layout(options: Mapping[str, str]) -> LayoutOptions:
    files = _object("layoutKeys", options.get("layoutkeys", "{}"))
    if not all(isinstance(path, str) for path in files.values()):
        raise _wrong("layoutKeys", options.get("layoutkeys"), 'it is not of the form {"id":"/file"}')
    return LayoutOptions(
        layout=_word(options, "layout", (OURS.layout, *(word for word in WORDS if word != OURS.layout))),
        prefixes=tuple(options.get("layoutprefixes", "").split(",")),
        private_keys={key: str(path) for key, path in files.items()},
    )


def _view(options: Mapping[str, str]) -> str | None:
    if _word(options, "readCompacted", ("false", "true")) == "true":
        return check_view(options.get("view", DEFAULT_VIEW))
    if "view" in options:
        raise _wrong("view", options["view"], "it needs readCompacted=true")
    return None


def _pin_ms(options: Mapping[str, str]) -> int | None:
    text = options.get("pin", "auto").strip().lower()
    match text:
        case "auto":
            return PIN_MS
        case "none":
            return None
    return _count("pin", text, parse_ms)


def _pins(text: str) -> dict[str, Mapping[str, object]]:
    found: dict[str, Mapping[str, object]] = {}
    for prefix, pin in _object("pins", text).items():
        if not isinstance(pin, dict):
            raise _wrong("pins", text, "it is not a result of tiered.spark.source.pinned_snapshots.pinned")
        found[prefix] = pin
    return found


def _counted(options: Mapping[str, str], name: str, parse: Callable[[str], int | None] = int) -> int | None:
    text = options.get(name.lower())
    return None if text is None else _count(name, text, parse)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise _wrong(name, text, "it is not a whole number of milliseconds") from error


def _count(name: str, text: str, parse: Callable[[str], int | None]) -> int:
    try:
        value = parse(text)
    except ValueError:
        value = None
    if value is None or value < 1:
        raise _wrong(name, text, "it is not a number above zero")
    return value


def _wrong(name: str, value: str | None, problem: str) -> InvalidRequest:
    return InvalidRequest(f"cannot read with Spark, invalid option, {problem}", option=name, value=value)
