"""Every object name of the remote tier and its inverse, in one place.

Keys are below ``<store url>/<topic>-<topic id>/<partition>/``, the partition's prefix:

| key | object |
|---|---|
| ``data/<base 20>-<last 20>-<epoch 10>-<ulid>.log`` | a segment, byte for byte Kafka's ``.log`` |
| ``data/<the same stem>.log.zst`` | the same in zstd frames, see `remote.segments.stored_segment` |
| ``data/<the same stem>.log.enc``, ``.log.zst.enc`` | either of them encrypted, see `remote.segments.encryption` |
| ``data/<the same stem>.indexes`` | its indexes, see `remote.segments.stored_segment` |
| ``view/<name>/<the same form>.log``, ``.indexes`` | a part of a compacted view, see `remote.manifest.view` |
| ``meta/manifest/<sequence 20>`` | a manifest, see `remote.manifest.manifest` |
| ``meta/page/<base 20>-<next 20>-<min ms 20>-<max ms 20>-<epoch 10>-<ulid>.parquet`` | `manifest.manifest_page` |
| ``meta/gc/boundary/<number 20>`` | the GC boundary of manifest names, see `remote.manifest.manifest_chain` |
| ``meta/pin/<ulid>.json`` | a reader's pin, or a fork's reference, see `remote.gc.pins`, `remote.gc.fork_references` |
| ``meta/probe/<ulid>`` | written and removed by `remote.store.probe` |

- Numbers are padded with zeros, so a listing is in order. `last` is the last offset, inclusive, as in Kafka's names;
  `next` is exclusive. The times in a page's name are hints, 0 where unknown or before 1970.
- A key that begins with a slash is the full key, from the root, of another partition's object
  (`remote.gc.fork_references`).
- A name is used once: the epoch separates writers, and the ulid separates the attempts of one writer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from local.errors import InvalidRequest
from local.names import PARTITION_MAX, TopicPartition, check_topic, check_topic_id

MANIFESTS = "meta/head/"
PAGES = "meta/spill/"
DATA = "data/"
VIEWS = "view/"
BOUNDARIES = "meta/gc/boundary/"
PINS = "meta/pin/"
PROBES = "meta/probe/"
DATA_SUFFIX, INDEXES_SUFFIX = ".log", ".indexes"
ZSTD_SUFFIX, ENCRYPTED_SUFFIX = ".zst", ".enc"  # after DATA_SUFFIX, in this order
TOPIC_ID_LENGTH = 22
VIEW_LENGTH_MAX = 64

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_STEM = r"([0-9]{20})-([0-9]{20})-([0-9]{10})-([0-9A-HJKMNP-TV-Z]{26})(\.log(?:\.zst)?(?:\.enc)?|\.indexes)"
_DATA_KEY = re.compile(r"data/" + _STEM, re.ASCII)
_VIEW = r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}"
_VIEW_KEY = re.compile(rf"view/({_VIEW})/{_STEM}", re.ASCII)
_PAGE_KEY = re.compile(
    r"meta/spill/([0-9]{20})-([0-9]{20})(?:-[0-9]{20}){2}-([0-9]{10})-([0-9A-HJKMNP-TV-Z]{26})\.parquet", re.ASCII
)
_BOUNDARY_KEY = re.compile(r"meta/gc/boundary/([0-9]{20})", re.ASCII)
_PIN_KEY = re.compile(r"meta/pin/([0-9A-HJKMNP-TV-Z]{26})\.json", re.ASCII)
_MANIFEST_KEY = re.compile(r"meta/head/([0-9]{20})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """The fields in the name of a data or indexes object. `last_offset` is inclusive."""

    base_offset: int
    last_offset: int
    epoch: int
    ulid: str
    suffix: str
    view: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageKey:
    """The fields in the name of a manifest page. Offsets are half open."""

    base_offset: int
    next_offset: int
    epoch: int
    ulid: str


def is_metadata(key: str) -> bool:
    """Whether a full key is a partition's metadata, not records; judged by its folder alone."""
    return "/meta/" in key


def partition_prefix(topic: str, topic_id: str, partition: int) -> str:
    """Return ``orders-<22 characters>/3/``. Raises InvalidRequest for a name Kafka would reject."""
    checked = TopicPartition(topic, partition)
    return f"{topic_directory(topic, topic_id)}/{checked.partition}/"


def topic_directory(topic: str, topic_id: str) -> str:
    return f"{check_topic(topic)}-{check_topic_id(topic_id)}"


def parse_topic_directory(name: str) -> tuple[str, str] | None:
    """(topic, topic id); None for anything else. The fixed width of the id separates them."""
    topic, dash, topic_id = name[: -TOPIC_ID_LENGTH - 1], name[-TOPIC_ID_LENGTH - 1 :][:1], name[-TOPIC_ID_LENGTH:]
    if dash != "-":
        return None
    try:
        return check_topic(topic), check_topic_id(topic_id)
    except InvalidRequest:
        return None


def parse_partition(name: str) -> int | None:
    """The partition of a path component such as ``3``; None for anything else, ``03`` included."""
    if not (name.isascii() and name.isdigit()) or str(int(name)) != name or int(name) > PARTITION_MAX:
        return None
    return int(name)


def parse_prefix(prefix: str) -> tuple[str, str, int] | None:
    """The inverse of `partition_prefix`: topic, topic id, partition; None for anything else."""
    directory, _, rest = prefix.partition("/")
    topic, number = parse_topic_directory(directory), parse_partition(rest.removesuffix("/"))
    if topic is None or number is None or not rest.endswith("/"):
        return None
    return *topic, number


def data_key(
    base_offset: int,
    last_offset: int,
    epoch: int,
    ulid: str,
    *,
    view: str | None = None,
    is_zstd: bool = False,
    is_encrypted: bool = False,
) -> str:
    suffix = DATA_SUFFIX + (ZSTD_SUFFIX if is_zstd else "") + (ENCRYPTED_SUFFIX if is_encrypted else "")
    return _stem(base_offset, last_offset, epoch, ulid, view) + suffix


def indexes_key(base_offset: int, last_offset: int, epoch: int, ulid: str, *, view: str | None = None) -> str:
    return _stem(base_offset, last_offset, epoch, ulid, view) + INDEXES_SUFFIX


def parse_data_key(key: str) -> DataKey | None:
    found = _DATA_KEY.fullmatch(key)
    return _data_key(None, *found.groups()) if found else None


def parse_view_key(key: str) -> DataKey | None:
    found = _VIEW_KEY.fullmatch(key)
    return _data_key(*found.groups()) if found else None


def is_segment_object(key: str) -> bool:
    """Whether a full key, prefix included, is in the folder of a log's or view's segments."""
    parts = key.split("/", 4)
    return len(parts) > 3 and parts[2] in (DATA[:-1], VIEWS[:-1])


def check_view(name: str) -> str:
    """Return the name of a view unchanged. Raises InvalidRequest if it cannot be part of a key."""
    if not re.fullmatch(_VIEW, name, re.ASCII):
        allowed = f"at most {VIEW_LENGTH_MAX} of a-z A-Z 0-9 . _ -, the first a letter or a digit"
        raise InvalidRequest("invalid view name", view=repr(name), allowed=allowed)
    return name


def page_key(base_offset: int, next_offset: int, times: tuple[int | None, int | None], epoch: int, ulid: str) -> str:
    """Return the key of a manifest page; `times` are its smallest and largest timestamp, in ms."""
    low, high = (max(0, each or 0) for each in times)
    return f"{PAGES}{base_offset:020d}-{next_offset:020d}-{low:020d}-{high:020d}-{epoch:010d}-{ulid}.parquet"


def parse_page_key(key: str) -> PageKey | None:
    found = _PAGE_KEY.fullmatch(key)
    if found is None:
        return None
    return PageKey(base_offset=int(found[1]), next_offset=int(found[2]), epoch=int(found[3]), ulid=found[4])


def parse_epoch(key: str) -> int | None:
    """Return the epoch in the name of a segment, indexes or page object; None for anything else."""
    parsed = parse_data_key(key) or parse_view_key(key) or parse_page_key(key)
    return parsed.epoch if parsed is not None else None


def stem_of(key: str) -> str:
    """Return the common part of a segment's two keys: ``<base>-<last>-<epoch>-<ulid>``."""
    return key.rpartition("/")[2].partition(".")[0]


def full_key(prefix: str, key: str) -> str:
    return key[1:] if key.startswith("/") else prefix + key


def object_identity(prefix: str, key: str) -> str:
    """The object's name from its topic's directory on: ``orders-<topic id>/3/data/...``."""
    home, own = (home_of(key), own_part(key)) if is_in_other_topic(key) else (prefix, key)
    return "/".join(home.rstrip("/").split("/")[-2:]) + "/" + own


def key_in_other_topic(prefix: str, key: str) -> str:
    """Return the key by which another partition's entry names the object `key` of `prefix`."""
    return key if key.startswith("/") else f"/{prefix}{key}"


def is_in_other_topic(key: str) -> bool:
    """Whether the object belongs to another partition; this partition must never delete it."""
    return key.startswith("/")


def own_part(key: str) -> str:
    return key.split("/", 3)[3] if is_in_other_topic(key) and key.count("/") > 3 else key


def home_of(key: str) -> str:
    return "/".join(key.split("/", 3)[1:3]) + "/"


def manifest_key(sequence: int) -> str:
    return f"{MANIFESTS}{sequence:020d}"


def parse_manifest_key(key: str) -> int | None:
    found = _MANIFEST_KEY.fullmatch(key)
    return int(found[1]) if found else None


def boundary_key(number: int) -> str:
    return f"{BOUNDARIES}{number:020d}"


def parse_boundary_key(key: str) -> int | None:
    found = _BOUNDARY_KEY.fullmatch(key)
    return int(found[1]) if found else None


def pin_key(ulid: str) -> str:
    return f"{PINS}{ulid}.json"


def parse_pin_key(key: str) -> str | None:
    found = _PIN_KEY.fullmatch(key)
    return found[1] if found else None


def new_ulid(now_ms: int) -> str:
    """26 characters that sort by `now_ms`, with 80 random bits. Source: github.com/ulid/spec"""
    import secrets  # loads hashlib too: a caller that makes no names does without it

    number = (now_ms & ((1 << 48) - 1)) << 80 | secrets.randbits(80)
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def ulid_ms(name: str) -> int:
    found = 0
    for letter in name[:10]:
        found = found << 5 | _CROCKFORD.index(letter)
    return found


def is_ulid(name: str) -> bool:
    return len(name) == 26 and set(name) <= set(_CROCKFORD)


def _stem(base_offset: int, last_offset: int, epoch: int, ulid: str, view: str | None) -> str:
    folder = DATA if view is None else f"{VIEWS}{check_view(view)}/"
    return f"{folder}{base_offset:020d}-{last_offset:020d}-{epoch:010d}-{ulid}"


def _data_key(view: str | None, base: str, last: str, epoch: str, ulid: str, suffix: str) -> DataKey:
    return DataKey(base_offset=int(base), last_offset=int(last), epoch=int(epoch), ulid=ulid, suffix=suffix, view=view)
