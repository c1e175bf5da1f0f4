"""The options of ``df.write.format("tiered")``, checked and parsed.

`tiered.spark.sink.sink` has their table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from local.errors import InvalidRequest
from local.names import check_topic, check_topic_id
from tiered.config.properties import PROPERTIES, canonical, parse
from tiered.config.property_table import IMMUTABLE
from tiered.jobs.ingest import SPAN
from tiered.jobs.job_bucket import Bucket
from tiered.stores.configured_store import OBJECT_SETTINGS

NAMES = (
    "path",
    "url",
    "topic",
    "createPartitions",
    "topicId",
    "jobId",
    "takeLeadership",
    "offsets",
    "offsetsPerTask",
    "storeOptions",
    "keyRing",
    "workDirectory",
)

STORE_SETTINGS = (*OBJECT_SETTINGS, IMMUTABLE)  # settings of other scopes than a topic that a job honours
_SPARKS = ("checkpointlocation", "queryname", "triggeravailablenow")  # a stream passes its own options too


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one write. `span` is None for offsets without gaps."""

    bucket: Bucket
    topic: str
    topic_id: str | None = None
    create_partitions: int | None = None
    job_id: str | None = None
    takes_leadership: bool = True
    span: int | None = SPAN
    settings: Mapping[str, str] = field(default_factory=dict)


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises InvalidRequest with the name of a wrong option."""
    options, settings = _known(given)
    urls = [options[name] for name in ("path", "url") if name in options]
    if len(urls) != 1 or not urls[0]:
        raise InvalidRequest(
            "cannot write with Spark, exactly one of the options path and url is required", given=len(urls)
        )
    if "topic" not in options:
        raise InvalidRequest("cannot write with Spark, the option topic is required")
    count = options.get("createpartitions")
    return WriteOptions(
        bucket=Bucket(
            url=urls[0],
            options=_object(options.get("storeoptions", "{}")),
            key_ring=options.get("keyring"),
            settings=settings,
            work_directory=options.get("workdirectory"),
        ),
        topic=check_topic(options["topic"]),
        topic_id=check_topic_id(options["topicid"]) if "topicid" in options else None,
        create_partitions=_number("createPartitions", count) if count is not None else None,
        job_id=options.get("jobid") or None,
        takes_leadership=_word(options, "takeLeadership", ("true", "false")) == "true",
        span=_span(options),
        settings=settings,
    )


def _known(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(options under lower-cased names, properties of the topic).

    Raises InvalidRequest with the nearest name.
    """
    real = {name.lower(): name for name in NAMES}
    options, settings = {}, {}
    for name, value in given.items():
        low = name.lower()
        if low in _SPARKS:
            continue
        if low in real:
            options[low] = value
        elif low in PROPERTIES:
            if not PROPERTIES[low].is_per_topic and low not in STORE_SETTINGS:
                raise InvalidRequest("cannot write with Spark, a job does not support settings of a node", option=name)
            parse(low, value, {"option": name})
            settings[low] = canonical(low, value)
        else:
            near = get_close_matches(low, [*real, *PROPERTIES], n=1)
            hint = real.get(near[0], near[0]) if near else None
            raise InvalidRequest("cannot write with Spark, unknown option", option=name, did_you_mean=hint)
    return options, settings


def _span(options: Mapping[str, str]) -> int | None:
    if _word(options, "offsets", ("ranges", "dense")) == "dense":
        if "offsetspertask" in options:
            raise InvalidRequest("cannot write with Spark, offsetsPerTask requires offsets=ranges")
        return None
    return _number("offsetsPerTask", options.get("offsetspertask", str(SPAN)))


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        # The text may hold a password, and so may the decoder's message, which quotes it.
        raise InvalidRequest(
            "cannot write with Spark, invalid option, it is not a JSON object", option="storeOptions"
        ) from None
    return value


def _word(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    value = options.get(name.lower(), words[0]).strip().lower()
    if value not in words:
        allowed = ", ".join(words)
        raise InvalidRequest(
            f"cannot write with Spark, invalid option, it is not one of {allowed}", option=name, value=value
        )
    return value


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InvalidRequest(
            "cannot write with Spark, invalid option, it is not a number above zero", option=name, value=text
        )
    return int(text)
