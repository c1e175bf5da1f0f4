"""The object encoding of new data objects, derived from settings here for every writer.

A manager and its views use the effective settings of the topic on the node. A sidecar and an import use those of the
command over those of the source; bulk ingest and bucket compaction use those of the job over the manifest's
(`with_key_of`). Merge, recode, copy and repair keep the encoding of the rewritten entry (`encoding_of_entry`), changed
where asked.

A writer without the node's configuration never writes plaintext behind encrypted entries: if its settings name no key,
the newest encrypted entry's key is used. A rewriting writer encrypts plaintext entries if the settings name a key. Only
``rewrite recode --decrypt`` removes encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from local.errors import InvalidRequest
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import CODECS, ObjectEncoding
from tiered.config.config import KEY_ID, STORAGE_CLASS, Config, object_encoding

SettingsOf = Callable[[str, Mapping[str, str]], Mapping[str, str]]  # topic, own settings -> effective settings
_CODES = {name: code for code, name in CODECS.items()}
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingChoice:
    """The object encoding without secrets: codec ("none", "zstd"), key id, storage class. `level` is not compared."""

    codec: str = "none"
    key_id: str | None = None
    storage_class: str | None = None
    level: int | None = field(default=None, compare=False)

    def object_encoding(self, keys: KeyRing) -> ObjectEncoding:
        """The encoding with this process's key ring. Raises InvalidRequest for an unknown codec."""
        if self.codec not in _CODES:
            raise InvalidRequest("cannot rewrite, unknown object encoding", codec=self.codec, known=",".join(_CODES))
        return ObjectEncoding(
            codec=_CODES[self.codec], level=self.level, key_id=self.key_id, keys=keys, storage_class=self.storage_class
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The settings of a bucket's topics, as a command knows them. It can be pickled, and holds no secret.

    With `is_node` all layers of `config` apply, else only its environment and overrides, over the topic's own settings.
    """

    config: Config
    is_node: bool = True

    def of(self, topic: str, own: Mapping[str, str]) -> dict[str, str]:
        """The settings of a topic; `own` are its manifest's. Raises InvalidRequest for an unknown setting."""
        if self.is_node:
            return self.config.topic_properties(topic, own)
        of_store = {STORAGE_CLASS: self.config.topic_properties("")[STORAGE_CLASS]}
        return {**own, **of_store, **self.config.environment, **self.config.overrides}


def own_settings(topic: str, own: Mapping[str, str]) -> Mapping[str, str]:
    del topic
    return own


def encoding_of(settings: Mapping[str, str], keys: KeyRing, entries: Iterable[SegmentEntry] = ()) -> ObjectEncoding:
    """The encoding of new data objects that replace or follow `entries`. Raises InvalidRequest for a missing key."""
    return object_encoding(with_key_of(settings, entries), keys)


def with_key_of(settings: Mapping[str, str], entries: Iterable[SegmentEntry]) -> dict[str, str]:
    """`settings`; if they name no key, with the key of the newest encrypted entry. `entries` ascend."""
    found = dict(settings)
    if not found.get(KEY_ID):
        used = [each.key_id for each in entries if each.key_id is not None]
        found |= {KEY_ID: used[-1]} if used else {}
    return found


def encoding_of_settings(settings: Mapping[str, str]) -> EncodingChoice:
    said = object_encoding({**settings, KEY_ID: ""}, NO_KEYS)
    codec, key_id = CODECS[said.codec], settings.get(KEY_ID) or None
    return EncodingChoice(codec=codec, key_id=key_id, storage_class=said.storage_class, level=said.level)


def encoding_of_entry(entry: SegmentEntry, settings: Mapping[str, str] = _NOTHING) -> EncodingChoice:
    """The encoding of `entry`; a key for plaintext and a storage class come from the settings if named."""
    said = encoding_of_settings(settings)
    return EncodingChoice(
        codec=entry.codec,
        key_id=entry.key_id or settings.get(KEY_ID) or None,
        storage_class=said.storage_class if STORAGE_CLASS in settings else entry.storage_class,
        level=said.level,
    )
