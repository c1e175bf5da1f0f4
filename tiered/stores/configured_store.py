"""The configured store, with its settings for objects and rates, the check of its guarantees, and its clock."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from local.errors import InvalidRequest, LogError, NotFound, Unavailable
from local.logdirs.log_dirs import LogDirectories
from local.storage import Storage, join, replace_file
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.keys import PROBES, new_ulid
from remote.store import ObjectStore
from remote.store.middleware.deadlines_and_retries import Deadlines, RetryBudget, RetryPolicy, WatchedStore
from remote.store.middleware.store_wrapper import ImmutableStore, StoreWrapper, ThrottledStore
from remote.store.open_store import open_store
from remote.store.s3_options import ObjectSettings, is_installed
from tiered.config.config import Config
from tiered.config.properties import DEFAULTS, IMMUTABLE, parse
from tiered.config.secrets import keyed_store, without_secrets

_log = logging.getLogger(__name__)
T = TypeVar("T")
OBJECT_SETTINGS = ("remote.storage.class", "remote.sse", "remote.sse.kms.key.id")
COPY_RATE, FETCH_RATE = (f"remote.log.manager.{way}.max.bytes.per.second" for way in ("copy", "fetch"))
HASTE_S = 2.0  # about as long as a person waits without output (`remote.store.middleware.deadlines_and_retries`)
CALL_DEADLINE_S = 5.0  # a connection over a slow network, and two attempts
ANSWERED_S = 60.0  # one call to a store that answers (`remote.store.middleware.deadlines_and_retries`): a large object
RETRIES_MAX = 4.0  # retries of all calls together, until other calls succeed
CLOSE_S = 1.0  # for the client of a store that did not answer
FILE = "remote-store.json"
MAX_AGE_MS = 7 * 86_400_000
LATER_MS = 3_600_000  # until the next check of a store that could not be checked
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "HADOOP_CONF_DIR")
_REFUSED = (
    "cannot use a store that overwrites existing objects, two writers could both commit; if "
    "no other process writes to it, set remote.single.writer=true"
)
CLOCK_WAIT_S = 5.0  # for the first answer, before the first maintenance


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

    In `haste` a call is tried once, for HASTE_S at most; after an unanswered call every further call fails at once.
    Outside it, calls are tried as those of any other store.
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

    The bound is ANSWERED_S for a store that has answered a call, else CALL_DEADLINE_S. Then every further call fails at
    once.
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


class _Remembered(msgspec.Struct):
    url: str
    create_if_absent: bool
    way: str = ""
    checked_ms: int = 0


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_REMEMBERED = msgspec.json.Decoder(_Remembered)


class StoreCheck:
    """Checks that a store creates only if absent, before the first write and weekly. Thread safe.

    Without that primitive two writers can both commit, and each reads back only its own manifest. The disk of one then
    drops segments that no manifest names. So a store that overwrites is refused, unless the operator declares a single
    writer. The check includes racing creates: a store may refuse a second create and still check first and write later.

    The log directory, `place`, records the answer for this URL, client, endpoint and options (a hash without secrets),
    and for MAX_AGE_MS: another server may use the address later.
    """

    def __init__(
        self, place: Callable[[], tuple[Storage, str]], *, is_single_writer: bool, options: Mapping[str, object]
    ) -> None:
        self._place, self._is_single_writer, self._options = place, is_single_writer, options
        self._lock = threading.Lock()
        self._checked_ms: int | None = None  # in this process
        self._refusal: InvalidRequest | None = None
        self._refused_ms = 0

    def ensure(self, store: ObjectStore, now_ms: int) -> None:
        """Check the store unless a recent answer is known. Raises InvalidRequest for a store that overwrites."""
        with self._lock:
            if not _is_fresh(self._checked_ms, now_ms):
                found = self._remembered(store)
                self._checked_ms = found if _is_fresh(found, now_ms) else self._ask(store, now_ms)

    def renew(self, store: ObjectStore, now_ms: int) -> None:
        """Check again if the answer is too old; nothing if no check was ever made. Raises as `ensure`.

        While the store is unavailable its last answer holds. A refusal is raised again for an hour without a check.
        """
        if self._checked_ms is None or _is_fresh(self._checked_ms, now_ms):
            return
        if self._refusal is not None and 0 <= now_ms - self._refused_ms < LATER_MS:
            # A new error for each calling thread: raising writes into an error.
            raise InvalidRequest(self._refusal.attempt, **self._refusal.facts)
        try:
            self.ensure(store, now_ms)
            self._refusal = None
        except InvalidRequest as error:
            self._refusal, self._refused_ms = error, now_ms
            raise
        except Unavailable as error:
            _log.warning("cannot check the guarantees of the store again: %s", error)
            self._checked_ms = now_ms - MAX_AGE_MS + LATER_MS

    def _ask(self, store: ObjectStore, now_ms: int) -> int:
        if _allows_writers(store, now_ms):
            seen = _Remembered(url=store.url, create_if_absent=True, way=self._way(store), checked_ms=now_ms)
            storage, root = self._place()
            replace_file(storage, join(root, FILE), msgspec.json.encode(seen))
        elif self._is_single_writer:
            _log.warning("the store overwrites existing objects, two writers would lose records: store=%s", store.url)
        else:
            raise InvalidRequest(_REFUSED, store=store.url)
        return now_ms

    def _remembered(self, store: ObjectStore) -> int | None:
        storage, root = self._place()
        try:
            found = _REMEMBERED.decode(storage.read(join(root, FILE)))
        except (NotFound, msgspec.MsgspecError):
            return None
        is_same = found.create_if_absent and (found.url, found.way) == (store.url, self._way(store))
        return found.checked_ms if is_same else None

    def _way(self, store: ObjectStore) -> str:
        named = {name: os.environ[name] for name in _ENDPOINTS if os.environ.get(name)}
        client = "obstore" if store.url.startswith("s3:") and is_installed() else ""  # the meaning of client "auto"
        described = msgspec.json.encode([client, without_secrets(self._options), named], order="sorted")
        return hashlib.sha256(described).hexdigest()[:16]


def check_writers(store: ObjectStore, now_ms: int) -> None:
    """Check the store for a long-running writer without a log directory: a sidecar. Raises as `ensure`."""
    if not _allows_writers(store, now_ms):
        raise InvalidRequest(_REFUSED, store=store.url)


def _allows_writers(store: ObjectStore, now_ms: int) -> bool:
    # A store in this process' memory has one lock and no race to lose.
    is_racing = not store.url.startswith("memory:")
    from remote.store.probe import probe_store

    return probe_store(store, now_ms=now_ms, is_racing=is_racing).allows_writers


def _is_fresh(checked_ms: int | None, now_ms: int) -> bool:
    """Whether an answer is recent. An answer from the future is not: a clock was wrong."""
    return checked_ms is not None and 0 <= now_ms - checked_ms < MAX_AGE_MS


def has_own_clock(url: str) -> bool:
    return url.startswith(("s3://", "hdfs://"))


def store_clock_of(store: ObjectStore | None, now_ms: Callable[[], int]) -> StoreClock | None:
    return StoreClock(store, now_ms) if store is not None and has_own_clock(store.url) else None


class StoreClock:
    """Asks one store for its time, in its own thread, one request at a time, by the stamp of a new object.

    S3 refuses requests that are signed with a time a quarter of an hour off: this counts as no answer.
    """

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        self._store, self._now_ms = store, now_ms
        self._asking: threading.Thread | None = None

    def ask(self, on_time: Callable[[int], None], wait_s: float = 0.0) -> None:
        """Call `on_time` with the store's time if it answers; wait `wait_s` at most. One request at a time."""
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(target=self._ask, args=(on_time,), name="tiered-store-clock", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:
                _log.warning("cannot read the time of the store, there is no thread for the request: cause=%s", error)
                return
            self._asking = asking
        self._asking.join(wait_s)

    def _ask(self, on_time: Callable[[int], None]) -> None:
        key = f"{PROBES}{new_ulid(self._now_ms())}"
        try:
            self._store.put_if_absent(key, b"tiered clock\n")
            stamped_ms = self._store.head(key).modified_ms
            if stamped_ms is not None:
                on_time(stamped_ms)
            delete_objects(self._store, "", [key], DeleteReason.PROBE)
        except LogError as error:
            _log.warning("cannot read the time of the store: error=%s", error)
