"""The configuration: ``tiered.toml``, environment and command line, layered, every key checked.

Precedence of a property, highest first: ``-X`` → ``TIERED_*`` environment → the topic's own settings → ``[topics]``
globs, a later one over an earlier → ``[defaults]`` → built in. Typed settings are checked against each other as in
kafka `LogConfig.validateTopicLogConfigValues`, KIP-950 and KIP-1241.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from local.errors import AccessDenied, InvalidRequest, NotFound
from policies.rules import PartitionRules
from tiered.config.properties import DEFAULTS, ENVIRONMENT, TABLE, canonical, find_property, nearest, parse
from tiered.config.secrets import FILE_VARIABLE, KEYS_VARIABLE, check_no_secret

if TYPE_CHECKING:
    from local.settings import LogSettings
    from remote.segments.encryption import KeyRing
    from remote.segments.stored_segment import ObjectEncoding

FILE = "tiered.toml"
DIRECTORY_VARIABLE, URL_VARIABLE = "TIERED_LOCAL_DIR", "TIERED_REMOTE_URL"
_OTHER_VARIABLES = (DIRECTORY_VARIABLE, URL_VARIABLE, FILE_VARIABLE, KEYS_VARIABLE)
KEYS = {
    "local": ("dir", "dirs", "cordoned"),
    "remote": ("url", "options", "key_ring"),
}  # the keys of the other sections are in the property table
SECTIONS = (*KEYS, "defaults", "topics")
KEY_ID, STORAGE_CLASS = "remote.encryption.key.id", "remote.storage.class"
UNLIMITED, FOLLOW = -1, -2
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a manager. Settings are text that was checked to parse. Paths are absolute.

    `data_dirs` are `data_dir` and `more_data_dirs`; the `cordoned_dirs` of them take no new partition. `remote_options`
    are passed to the store unchanged, without secrets unless the endpoint is loopback. `changed_ns` is the file's
    modification time when read.
    """

    data_dir: str
    remote_url: str | None = None
    remote_options: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    more_data_dirs: tuple[str, ...] = ()
    cordoned_dirs: frozenset[str] = frozenset()
    key_ring: str | None = None
    changed_ns: int = field(default=0, compare=False)

    @classmethod
    def load(
        cls,
        path: str | None = None,
        overrides: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        local_dir: str | None = None,
    ) -> Config:
        """Return the settings of `path` (None: built-in defaults alone) under environment and overrides.

        Raises NotFound for a missing file, InvalidRequest for unknown or malformed settings and for secrets.
        """
        body, changed_ns = _read(path) if path is not None else ({}, 0)
        _check_sections(body, path)
        local, remote = _table(body, "local", path), _table(body, "remote", path)
        environ = environ if environ is not None else {}
        url = environ.get(URL_VARIABLE) or _string(remote, "url", "remote", path)
        options = _table(remote, "options", path)
        check_no_secret(url, options, path)
        root = os.path.dirname(os.path.abspath(path)) if path is not None else os.getcwd()
        instead = environ.get(DIRECTORY_VARIABLE) or local_dir
        dirs = [instead] if instead else _directories(local, path)
        data_dirs = _absolute(dirs, root, path)
        ring = _string(remote, "key_ring", "remote", path)
        cordoned = _absolute([] if instead else _strings(local, "cordoned", path), root, path)
        for each in cordoned:
            if each not in data_dirs:
                raise _invalid("cordoned names a directory that is not a log directory", directory=each, file=path)
        topics = _table(body, "topics", path)
        config = cls(
            data_dir=data_dirs[0],
            more_data_dirs=tuple(data_dirs[1:]),
            cordoned_dirs=frozenset(cordoned),
            remote_url=url,
            key_ring=os.path.abspath(os.path.join(root, ring)) if ring else None,
            remote_options=options,
            defaults=_settings(_table(body, "defaults", path), {"section": "defaults", "file": path}),
            topics={
                glob: _settings(_table(topics, glob, path), {"section": f"topics.{glob}", "file": path}, per_topic=True)
                for glob in topics
            },
            environment=_from_environment(environ),
            overrides=_settings(overrides or {}, {"option": "-X"}),
            path=path,
            changed_ns=changed_ns,
        )
        check_combination(config.topic_properties(""), may_tier=url is not None)
        return config

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """Every log directory (Kafka's ``log.dirs``), absolute, in the order of configuration."""
        return (self.data_dir, *self.more_data_dirs)

    def int_of(self, name: str) -> int:
        value = parse(name, self.topic_properties("")[name])
        assert isinstance(value, int), "the setting is a whole number"
        return value

    @property
    def dir_free_share_min(self) -> float:
        """The free share of a file system, 0..1, below which its directory takes no new partition."""
        return float(self.topic_properties("")["log.dir.free.share.min"])

    @property
    def fetch_cache_dir(self) -> str:
        """The persistent fetch cache, absolute; empty for none. Raises InvalidRequest inside a log directory."""
        path = self.topic_properties("")["remote.fetch.cache.dir"]
        if not path:
            return ""
        path = os.path.abspath(os.path.join(os.path.dirname(self.path or ""), path))
        for root in self.data_dirs:
            if os.path.commonpath([os.path.abspath(root), path]) == os.path.abspath(root):
                wrong = "invalid setting, the path is inside a log directory"
                raise InvalidRequest(wrong, key="remote.fetch.cache.dir", value=path, log_dir=root)
        return path

    @property
    def is_single_writer(self) -> bool:
        """The operator's promise that no other manager ever writes to the store."""
        return self.topic_properties("")["remote.single.writer"].lower() == "true"

    def topic_properties(self, topic: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """Every effective setting of a topic, as text. Raises InvalidRequest for an invalid one in `own`."""
        return DEFAULTS | self.given_properties(topic, own)

    def given_properties(self, topic: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """As `topic_properties`, without the built-in defaults."""
        given: dict[str, str] = {}
        for _, layer in self.layers(topic, own or {}):
            given |= layer
        return given

    def explain(self, topic: str, own: Mapping[str, str] | None = None) -> list[Setting]:
        effective = {name: Setting(name=name, value=value, origin="default") for name, value in DEFAULTS.items()}
        for origin, layer in self.layers(topic, own or {}):
            effective |= {name: Setting(name=name, value=value, origin=origin) for name, value in layer.items()}
        return list(effective.values())

    def layers(self, topic: str, own: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """The origins and their settings, a later one over an earlier. Raises InvalidRequest for one in `own`."""
        own = _settings(own, {"topic": topic}, per_topic=True)
        yield f"{self.path} [defaults]", self.defaults
        for glob, settings in self.topics.items():
            if fnmatchcase(topic, glob):
                yield f'{self.path} [topics."{glob}"]', settings
        yield f"topic {topic}", own
        yield "environment", self.environment
        yield "-X", self.overrides


def file_url(directory: str) -> str:
    """The ``file://`` URL of an absolute directory, quoted. Raises InvalidRequest for a non-UTF-8 name."""
    try:
        return "file://" + quote(directory, errors="strict")
    except UnicodeEncodeError:
        wrong = "cannot write a file url, the name of the directory is not UTF-8"
        raise InvalidRequest(wrong, directory=directory) from None


def last_changed_ns(path: str | int) -> int:
    """The modification time of a file; 0 for a pipe, which its readers change. Raises OSError."""
    found = os.stat(path)
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0


def _read(path: str) -> tuple[dict[str, object], int]:
    """Return content and modification time. The time is read first, so that a later change is noticed."""
    try:
        with open(path, "rb") as file:
            changed_ns = last_changed_ns(file.fileno())
            body = file.read()
        return tomllib.loads(body.decode("utf-8-sig")), changed_ns
    except FileNotFoundError:
        raise NotFound("the configuration file does not exist", file=path) from None
    except UnicodeDecodeError as error:
        wrong = "cannot read the configuration, it is not UTF-8 text: save it as UTF-8"
        raise InvalidRequest(wrong, byte=f"0x{body[error.start]:02x}", at=error.start, file=path) from None
    except tomllib.TOMLDecodeError as error:
        is_json = body.lstrip()[:1] == b"{"
        what = "the file is JSON: write TOML, dir = 'data' below [local]" if is_json else _lower(str(error))
        raise InvalidRequest(f"cannot read the configuration, {what}", file=path) from None
    except PermissionError:
        raise AccessDenied("cannot read the configuration", file=path, cause="eacces") from None
    except OSError as error:
        what = _lower(error.strerror or "failed")
        raise InvalidRequest(f"cannot read the configuration, {what}", file=path) from None


def _check_sections(body: Mapping[str, object], path: str | None) -> None:
    for section, content in body.items():
        if section not in SECTIONS:
            hint = nearest(section, SECTIONS)
            raise _invalid("unknown section", section=section, file=path, did_you_mean=hint)
        for key in content if section in KEYS and isinstance(content, dict) else ():
            if key not in KEYS[section]:
                hint = nearest(key, KEYS[section])
                raise _invalid("unknown key", key=key, section=section, file=path, did_you_mean=hint)


def _table(body: Mapping[str, object], name: str, path: str | None) -> dict[str, object]:
    content = body.get(name, {})
    if not isinstance(content, dict):
        raise _invalid("a section is not a table", section=name, file=path)
    return content


def _string(table: Mapping[str, object], key: str, section: str, path: str | None) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        wrong = "the value is not a string" if value != "" else "the value is empty: write a value, or remove the key"
        raise _invalid(wrong, key=key, section=section, file=path)
    return value


def _strings(local: Mapping[str, object], key: str, path: str | None) -> list[str]:
    value = local.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise _invalid("the value is not a list of strings", key=key, section="local", file=path)
    return value


def _directories(local: Mapping[str, object], path: str | None) -> list[str]:
    one, several = _string(local, "dir", "local", path), _strings(local, "dirs", path)
    if "dirs" in local and (one or not several):
        raise _invalid("[local] needs either dir or dirs with at least one directory", file=path)
    return several or [one or "data"]


def _absolute(directories: Sequence[str], root: str, path: str | None) -> list[str]:
    """Return absolute paths. Raises InvalidRequest for repeated or nested directories and for zero bytes."""
    if any("\0" in each for each in directories):
        raise _invalid("the name of a directory contains a zero byte", file=path)
    found = [os.path.abspath(os.path.join(root, each)) for each in directories]
    real = sorted(os.path.realpath(each) + "/" for each in found)
    for before, after in pairwise(real):
        if after.startswith(before):
            raise _invalid("a log directory is repeated or inside another one", directory=after[:-1], file=path)
    return found


def _settings(table: Mapping[str, object], where: Mapping[str, object], *, per_topic: bool = False) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in table.items():
        find_property(name, where, per_topic=per_topic)
        text = str(value)
        parse(name, text, where)
        settings[name] = canonical(name, text)
    return settings


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in ``TIERED_*`` variables. Raises InvalidRequest for a misspelled one."""
    settings: dict[str, str] = {}
    for variable, text in environ.items():
        row = ENVIRONMENT.get(variable)
        if row is not None:
            parse(row.name, text, {"variable": variable})
            settings[row.name] = canonical(row.name, text)
        elif variable.startswith("TIERED_") and variable not in _OTHER_VARIABLES:
            meant = nearest(variable, ENVIRONMENT, cutoff=0.9)
            if meant is not None:
                raise InvalidRequest("invalid environment, unknown variable", variable=variable, did_you_mean=meant)
    return settings


def _invalid(what: str, **facts: object) -> InvalidRequest:
    return InvalidRequest(f"invalid configuration, {what}", **facts)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def resolve_rules(settings: Mapping[str, str]) -> PartitionRules:
    """The policies' rules; missing settings have their defaults.

    -1 becomes None, but the local retention in `remote.copy.lag.*`. -2 in `local.retention.*` becomes the retention of
    the log: *unlimited* without the delete policy, as `retention.*` must not apply to the disk either. Raises
    InvalidRequest for values and combinations that Kafka refuses.
    """
    check_combination(settings)
    policy = _policies(settings)
    retention = {unit: _limit(settings, f"retention.{unit}") for unit in ("ms", "bytes")}
    effective = retention if "delete" in policy else {"ms": None, "bytes": None}
    local = {unit: _follow(settings, f"local.retention.{unit}", FOLLOW, effective[unit]) for unit in ("ms", "bytes")}
    lag = {unit: _follow(settings, f"remote.copy.lag.{unit}", UNLIMITED, local[unit]) for unit in ("ms", "bytes")}
    most_ms = _int(settings, "max.compaction.lag.ms") if "compact" in policy else _INT64_MAX
    unchanged: dict[str, Any] = {row.rule: _value(settings, row.name) for row in TABLE if row.rule}
    return PartitionRules(
        cleanup_delete="delete" in policy,
        cleanup_compact="compact" in policy,
        retention_ms=retention["ms"],
        retention_bytes=retention["bytes"],
        local_retention_ms=local["ms"],
        local_retention_bytes=local["bytes"],
        segment_ms=min(_int(settings, "segment.ms"), most_ms),
        copy_lag_ms=lag["ms"],
        copy_lag_bytes=lag["bytes"],
        max_compaction_lag_ms=_unless_max(most_ms),
        view_threshold_bytes=_int(settings, "compaction.view.threshold") or None,
        **unchanged,
    )


def log_settings(settings: Mapping[str, str]) -> LogSettings:
    """The local log's settings; missing ones have their defaults. Raises InvalidRequest."""
    from local.format.compression import Codec
    from local.format.record import TimestampType
    from local.settings import LogSettings

    codec = cast(str, _value(settings, "compression.type"))
    level = _int(settings, f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None
    is_log_append_time = _value(settings, "message.timestamp.type") == "LogAppendTime"
    unchanged: dict[str, Any] = {row.log_setting: _value(settings, row.name) for row in TABLE if row.log_setting}
    return LogSettings(
        compression=Codec.NONE if codec in ("producer", "uncompressed") else Codec[codec.upper()],
        recompresses=codec != "producer",
        compression_level=None if codec == "gzip" and level == -1 else level,
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_log_append_time else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=_unless_max(_int(settings, "message.timestamp.before.max.ms")),
        timestamp_after_max_ms=_unless_max(_int(settings, "message.timestamp.after.max.ms")),
        max_compaction_lag_ms=_unless_max(_int(settings, "max.compaction.lag.ms")),
        is_compacted="compact" in _policies(settings),
        drops_keyless=_value(settings, "compaction.records.without.key") == "drop",
        flush_messages=_unless_max(_int(settings, "flush.messages")),
        flush_ms=_unless_max(_int(settings, "flush.ms")),
        **unchanged,
    )


def object_encoding(settings: Mapping[str, str], keys: KeyRing) -> ObjectEncoding:
    """The object encoding of a topic's new objects. Raises InvalidRequest for a key that `keys` lacks."""
    from remote.segments.stored_segment import RAW, ZSTD, ObjectEncoding

    key_id = cast(str, _value(settings, KEY_ID)) or None
    if key_id is not None and key_id not in keys:
        wrong = "invalid object encoding, the key is not in the key ring"
        raise InvalidRequest(wrong, **{KEY_ID: key_id, "key_ring": keys})
    storage_class = cast(str, _value(settings, STORAGE_CLASS))
    return ObjectEncoding(
        codec=ZSTD if _value(settings, "remote.compression") == "zstd" else RAW,
        level=_int(settings, "remote.compression.zstd.level"),
        key_id=key_id,
        keys=keys,
        storage_class=None if storage_class == "default" else storage_class,
    )


def check_combination(settings: Mapping[str, str], *, may_tier: bool = False) -> None:
    """Raise InvalidRequest, with both keys, for a contradiction. `may_tier`: check as for a tiered topic too."""
    if _value(settings, "remote.sse.kms.key.id") and _value(settings, "remote.sse") != "aws:kms":
        _refuse("remote.sse.kms.key.id", "given", "remote.sse", _value(settings, "remote.sse"), "only aws:kms has keys")
    least, most = _int(settings, "min.compaction.lag.ms"), _int(settings, "max.compaction.lag.ms")
    if least > most:
        _refuse("min.compaction.lag.ms", least, "max.compaction.lag.ms", most, "the minimum is larger than the maximum")
    if _value(settings, "append.acks") == "remote" and "compact" in _policies(settings):
        _refuse("append.acks", "remote", "cleanup.policy", "compact", "a compacted topic is copied after it is cleaned")
    if may_tier or _value(settings, "remote.storage.enable"):
        for unit in ("ms", "bytes"):
            _check_tier(settings, unit)


def _check_tier(settings: Mapping[str, str], unit: str) -> None:
    whole, local = _int(settings, f"retention.{unit}"), _int(settings, f"local.retention.{unit}")
    if whole != UNLIMITED and local != FOLLOW and (local == UNLIMITED or local > whole):
        _refuse(f"local.retention.{unit}", local, f"retention.{unit}", whole, "the disk would retain more than the log")
    if _value(settings, "remote.log.copy.disable") and local not in (FOLLOW, whole):
        _refuse(f"local.retention.{unit}", local, "remote.log.copy.disable", "true", "it must follow retention.*")
    lag, retained = _int(settings, f"remote.copy.lag.{unit}"), whole if local == FOLLOW else local
    if lag > 0 and retained != UNLIMITED and lag > retained:
        key = f"local.retention.{unit}"
        _refuse(f"remote.copy.lag.{unit}", lag, key, retained, "segments would be dropped before they are copied")


def _refuse(key: str, value: object, other: str, other_value: object, why: str) -> None:
    raise InvalidRequest(f"contradicting settings, {why}", **{key: value, other: other_value})


def _value(settings: Mapping[str, str], name: str) -> object:
    return parse(name, settings.get(name, DEFAULTS[name]))


def _int(settings: Mapping[str, str], name: str) -> int:
    return cast(int, _value(settings, name))


def _policies(settings: Mapping[str, str]) -> frozenset[str]:
    return cast(frozenset[str], _value(settings, "cleanup.policy"))


def _limit(settings: Mapping[str, str], name: str) -> int | None:
    value = _int(settings, name)
    return None if value == UNLIMITED else value


def _follow(settings: Mapping[str, str], name: str, follows: int, other: int | None) -> int | None:
    return other if _int(settings, name) == follows else _limit(settings, name)


def _unless_max(value: int) -> int | None:
    return None if value == _INT64_MAX else value
