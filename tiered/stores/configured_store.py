"""The configured store, with its settings for objects and rates; one per manager."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

from local.errors import LogError, Unavailable
from local.logdirs.log_dirs import LogDirectories
from remote.store import ObjectStore
from remote.store.middleware.deadlines_and_retries import Deadlines, RetryBudget, RetryPolicy, WatchedStore
from remote.store.middleware.store_wrapper import ImmutableStore, StoreWrapper, ThrottledStore
from remote.store.open_store import open_store
from remote.store.s3_options import ObjectSettings
from tiered.config.config import Config
from tiered.config.properties import DEFAULTS, IMMUTABLE, parse
from tiered.config.secrets import keyed_store

T = TypeVar("T")
OBJECT_SETTINGS = ("remote.storage.class", "remote.sse", "remote.sse.kms.key.id")
COPY_RATE, FETCH_RATE = (f"remote.log.manager.{way}.max.bytes.per.second" for way in ("copy", "fetch"))
HASTE_S = 2.0  # about as long as a person waits without output (`remote.store.middleware.deadlines_and_retries`)
CALL_DEADLINE_S = 5.0  # a connection over a slow network, and two attempts
ANSWERED_S = 60.0  # one call to a store that answers (`remote.store.middleware.deadlines_and_retries`): a large object
RETRIES_MAX = 4.0  # retries of all calls together, until other calls succeed
CLOSE_S = 1.0  # for the client of a store that did not answer


def configured_store(config: Config, *, policy: RetryPolicy | None = None) -> ObjectStore | None:
    """The configured store; None without one. Raises InvalidRequest for an invalid url, option or setting."""
    if config.remote_url is None:
        return None
    values = config.topic_properties("")
    return _settled_store(config.remote_url, config.remote_options, values, config.key_ring, policy)


def addressed_store(
    url: str, options: Mapping[str, object], config: Config, *, writes_segments: bool = False
) -> ObjectStore:
    """The store at `url` under the settings of `config`, which has no file. Raises as `configured_store`.

    Without `writes_segments` object settings that only S3 has are no error for another store.
    """
    values = config.topic_properties("")
    if not (writes_segments or url.startswith("s3:")):
        values |= {name: DEFAULTS[name] for name in OBJECT_SETTINGS}
    return _settled_store(url, options, values, config.key_ring)


def _settled_store(
    url: str,
    options: Mapping[str, object],
    values: dict[str, str],
    key_ring: str | None,
    policy: RetryPolicy | None = None,
) -> ObjectStore:
    store = open_store(url, _with_client(url, options, values), policy=policy, objects=object_settings(values))
    if parse(IMMUTABLE, values[IMMUTABLE]):
        store = ImmutableStore(store)
    store = keyed_store(store, key_ring)
    copy_rate, fetch_rate = (_rate(values, name) for name in (COPY_RATE, FETCH_RATE))
    return store if copy_rate is fetch_rate is None else ThrottledStore(store, copy_rate, fetch_rate)


def store_options(config: Config) -> dict[str, object]:
    """The options of the file; for S3 with the configured client unless they name one."""
    return _with_client(config.remote_url or "", config.remote_options, config.topic_properties(""))


def _with_client(url: str, given: Mapping[str, object], values: Mapping[str, str]) -> dict[str, object]:
    options = dict(given)
    if url.startswith("s3://"):
        options.setdefault("client", values["remote.s3.client"])
    return options


def object_settings(values: dict[str, str]) -> ObjectSettings:
    """The settings of every object in S3; "default" sends nothing."""
    storage_class, encryption = values["remote.storage.class"], values["remote.sse"]
    return ObjectSettings(
        storage_class=None if storage_class == "default" else storage_class,
        encryption=None if encryption == "default" else encryption,
        kms_key_id=values["remote.sse.kms.key.id"] or None,
    )


def _rate(values: dict[str, str], name: str) -> int | None:
    rate = parse(name, values[name])
    assert isinstance(rate, int), "a size parses to a whole number"
    return None if values[name] == DEFAULTS[name] else rate


def release(directory: LogDirectories, store: ObjectStore | None) -> None:
    """Release the directory and the store as a crash would: writes nothing."""
    try:
        directory.abandon()
    finally:
        if store is not None:
            store.close()


class ShortDeadlineStore(WatchedStore):
    """A store with short deadlines while a command opens. Thread safe, except `haste`.

    | phase | a call | after an unanswered call |
    |---|---|---|
    | in haste (`haste`) | is tried once, for HASTE_S at most | every further call fails at once, until its end |
    | afterwards | is tried as any other store's | is tried as any other store's |
    """

    upload, close = StoreWrapper.upload, StoreWrapper.close  # `inner` has deadlines for them

    def __init__(self, inner: ObjectStore, budget: RetryBudget, limit_s: float = HASTE_S) -> None:
        super().__init__(inner, deadlines=Deadlines(call_s=limit_s))
        self._budget = budget
        self._is_hasty = False
        self._silent: Unavailable | None = None  # the error of an unanswered call

    @classmethod
    def of(cls, config: Config) -> ShortDeadlineStore | None:
        policy = RetryPolicy()
        store = configured_store(config, policy=policy)
        return cls(store, policy.budget) if store is not None else None

    @contextmanager
    def haste(self) -> Iterator[None]:
        """Give the calls in this context short deadlines. One thread enters it."""
        self._is_hasty, self._silent = True, None
        try:
            with self._budget.closed():
                yield
        finally:
            self._is_hasty = False

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        if not self._is_hasty:
            return call()
        if self._silent is not None:
            raise self._silent.restated("the store did not reply to an earlier call", **self._silent.facts)
        try:
            return super()._around(call, operation, key, size_bytes)
        except Unavailable as error:
            self._silent = error
            raise


class BriefStore(WatchedStore):
    """A store that bounds the unanswered waits of all calls together. For reading commands. Thread safe.

    | the store | unanswered waits, in total | then |
    |---|---|---|
    | has answered no call | CALL_DEADLINE_S | every further call fails at once |
    | has answered a call | ANSWERED_S | every further call fails at once |
    """

    def __init__(
        self, inner: ObjectStore, limit_s: float = CALL_DEADLINE_S, elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(inner)
        self._limit_s, self._elapsed_s = limit_s, elapsed_s
        self._lock = threading.Lock()
        self._vain_s, self._has_answered = 0.0, False
        self._silent: Unavailable | None = None  # the error of the first unanswered call

    @classmethod
    def of(cls, config: Config) -> BriefStore | None:
        policy = RetryPolicy(deadline_s=CALL_DEADLINE_S / 2, budget=RetryBudget(RETRIES_MAX))
        store = configured_store(config, policy=policy)
        return cls(store) if store is not None else None

    @property
    def is_away(self) -> bool:
        return self._silent is not None and not self._has_answered

    def close(self) -> None:
        if self._silent is None:
            self._inner.close()
            return
        with suppress(Unavailable):
            self._watchdog.run(self._inner.close, CLOSE_S, "closing a store that did not reply")

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        with self._lock:
            left_s = (ANSWERED_S if self._has_answered else self._limit_s) - self._vain_s
            silent = self._silent
        if silent is not None and left_s <= 0:
            raise silent.restated(silent.attempt, **silent.facts)
        started_s = self._elapsed_s()
        try:
            limited = WatchedStore(self._inner, self._watchdog, Deadlines(call_s=left_s))
            found = limited._around(call, operation, key, size_bytes)
        except Unavailable as error:
            with self._lock:
                self._vain_s += self._elapsed_s() - started_s
                self._silent = self._silent or error
            raise
        except LogError:
            self._has_answered = True
            raise
        self._has_answered = True
        return found
