"""Kinds of object store faults, each injected at one chosen call.

Numbers and names are those of the list in docs/reference/reliability.md. `Kind.verbs` says which calls can meet a kind.
Time is virtual: a slow call advances the clock. `heal` ends each lasting fault (a quota, a changed object, an old
view).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from local.errors import AccessDenied, AlreadyExists, LogError, NotFound, Unavailable
from remote.store import Body, GetRange, ObjectInfo, UploadSource, read_if_there
from remote.store.memory_store import MemoryStore

BODIES = frozenset({"get", "get_range", "get_ranges"})
RANGES = frozenset({"get_range", "get_ranges"})
LISTS = frozenset({"list", "list_prefixes"})
PUTS = frozenset({"put", "put_if_absent", "upload"})
ALL = BODIES | LISTS | PUTS | {"head", "delete"}

ATTEMPT_MS = 3_000  # after which a client stops waiting for one request
SLOW_MS = 20_000
WINDOW_CALLS = 4  # calls that an old view, a throttle or a quota lasts
WRITES_BEHIND = 3  # age of an old view, in writes
LATE_CALLS = 3


class Kind(Enum):
    """(number in the list, description, verbs that can meet it)."""

    ERROR_BEFORE = (1, "error before the effect", ALL)
    ERROR_AFTER = (2, "error after the effect", ALL)
    TIMEOUT_BEFORE = (3, "timeout before the effect", ALL)
    TIMEOUT_AFTER = (4, "timeout after the effect", ALL)
    LATE_EFFECT = (4, "timeout, and the effect comes some calls later", PUTS | {"delete"})
    THROTTLED = (5, "503 for some calls", ALL)
    EXPIRED_TOKEN = (5, "403, the token expired", ALL)
    RESET_IN_BODY = (6, "reset inside the body", BODIES | {"list", "upload"})
    SHORT_BODY = (7, "short body", BODIES)
    BIT_FLIP = (8, "bit flip", BODIES)
    WRONG_RANGE = (9, "wrong range", RANGES)
    WHOLE_FOR_RANGE = (10, "the whole object for a range", RANGES)
    SLOW = (11, "slow, then right", ALL)
    HANG = (11, "no answer ever; the effect comes when nobody waits any more", ALL)
    STALE_READ = (12, "reads of an older state for a while", BODIES | {"head"})
    STALE_LIST = (13, "a listing of an older state", LISTS)
    PHANTOM_ENTRY = (14, "a listing with what was deleted", LISTS)
    DUPLICATE = (15, "a PUT that is delivered once more, late", PUTS)
    LOST_PART = (16, "a part of a multipart upload lost", frozenset({"upload"}))
    COMPLETE_ERROR_THERE = (17, "complete answers 200 and an error, the object exists", frozenset({"upload"}))
    COMPLETE_ERROR_ABSENT = (17, "complete answers 200 and an error, no object", frozenset({"upload"}))
    NOT_FOUND_AFTER_PUT = (18, "404 after a PUT", PUTS)
    QUOTA = (19, "no room for any further byte for a while", PUTS)
    CHANGED_OBJECT = (20, "another object under the name", BODIES)
    FALSE_CONFLICT = (2, "create answers 'exists' for our own object", frozenset({"put_if_absent"}))
    PARTIAL_DELETE = (1, "a multi-delete that takes some and fails", frozenset({"delete"}))
    SILENT_DELETE = (2, "a delete that answers well and deletes nothing", frozenset({"delete"}))

    @property
    def number(self) -> int:
        return int(self.value[0])

    @property
    def verbs(self) -> frozenset[str]:
        return frozenset(self.value[2])


LASTING = (Kind.THROTTLED, Kind.QUOTA, Kind.STALE_READ)
Plan = Callable[[int, str], Kind | None]


@dataclass(slots=True)
class Clock:
    now_ms: int


@dataclass(slots=True)
class _State:
    """The history of objects: (key, earlier body) of the last few writes, newest last, and deleted bodies."""

    before: list[tuple[str, bytes | None]] = field(default_factory=list)
    gone: dict[str, bytes] = field(default_factory=dict)


class _Current(threading.local):
    """The current call of a thread. Threads that read ahead call at the same time as the reader."""

    number = -1
    kind: Kind | None = None


class FaultStore:
    """Wraps a memory store. `arm` selects the call (from 0) that meets a kind; `calls` lists all."""

    def __init__(self, inner: MemoryStore, clock: Clock) -> None:
        self.inner = inner
        self.clock = clock
        self.calls: list[str] = []
        self.met: str | None = None
        self._plan: Plan = lambda number, verb: None
        self._current = _Current()
        self._lock = threading.Lock()
        self._state = _State()
        self._late: list[tuple[int, Callable[[], Any]]] = []
        self._hidden: dict[str, int] = {}
        self._changed: dict[str, bytes] = {}
        self._windows: dict[Kind, int] = {}  # lasting kinds, with the last call that each affects
        self._hanging: list[threading.Event] = []
        self._let_go = threading.Event()

    @property
    def url(self) -> str:
        return self.inner.url

    def close(self) -> None:
        pass

    def arm(self, at: int = -1, kind: Kind | None = None) -> None:
        self.follow(lambda number, verb: kind if number == at else None)

    def follow(self, plan: Plan) -> None:
        """`plan(number, verb)` returns the kind that each later call meets."""
        self.calls, self.met, self._plan = [], None, plan

    def heal(self) -> None:
        """End all lasting faults and deliver all delayed requests."""
        self._plan, self._windows, self._hidden = lambda number, verb: None, {}, {}
        self._current.kind = None
        for key, body in self._changed.items():
            self.inner.put(key, body)
        self._changed = {}
        self._let_go.set()
        for each in self._hanging:
            each.wait(60)
        self._hanging = []
        self._deliver(1 << 60)

    # --- verbs -------------------------------------------------------------------------------------------------------

    def put(self, key: str, body: Body) -> None:
        copy = bytes(body)
        self._write("put", [key], lambda: self.inner.put(key, copy))

    def put_if_absent(self, key: str, body: Body) -> None:
        copy = bytes(body)
        self._write("put_if_absent", [key], lambda: self.inner.put_if_absent(key, copy))

    def upload(self, key: str, source: UploadSource) -> None:
        def effect() -> None:
            self.inner.upload(key, source)

        def truncated() -> None:
            effect()
            whole = self.inner.get(key)
            self.inner.put(key, whole[: max(1, len(whole) // 2)])

        self._write("upload", [key], effect, lost_part=truncated)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        half = wanted[: len(wanted) // 2]
        self._write("delete", wanted, lambda: self.inner.delete(wanted), some=lambda: self.inner.delete(half))

    def get(self, key: str) -> bytes:
        return self._read("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read("get_range", key, lambda: self.inner.get_range(key, start, length), start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        if not ranges:
            return []
        first = self._read("get_ranges", key, lambda: self.inner.get_range(key, *ranges[0]), *ranges[0])
        return [first, *(self.inner.get_range(key, start, length) for start, length in ranges[1:])]

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        return [read_if_there(self, each) for each in ranges]

    def head(self, key: str) -> ObjectInfo:
        info: ObjectInfo = self._read("head", key, lambda: self.inner.head(key))
        return info

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = self._listed("list", lambda: list(self.inner.list(prefix, start_after=start_after)), prefix)
        return iter([info for info in found if info.key > start_after])

    def list_prefixes(self, prefix: str) -> list[str]:
        found = self._call("list_prefixes", lambda: self.inner.list_prefixes(prefix))
        names: list[str] = found
        return names

    # --- internals ---------------------------------------------------------------------------------------------------

    def _begin(self, verb: str) -> Kind | None:
        """The kind that this call meets."""
        with self._lock:
            number = len(self.calls)
            self.calls.append(verb)
            kind = self._plan(number, verb)
        self._deliver(number)
        kind = kind if kind is not None and verb in kind.verbs else None
        self._current.number, self._current.kind = number, kind
        if kind is not None:
            self.met = verb
            if kind in LASTING:
                self._windows[kind] = number + WINDOW_CALLS
        lasting = (each for each, end in self._windows.items() if number < end and verb in each.verbs)
        return kind or next((each for each in lasting if each is not Kind.STALE_READ), None)

    def _call(self, verb: str, effect: Callable[[], Any], **other: Callable[[], Any]) -> Any:
        """Behaviour that all verbs share."""
        kind = self._begin(verb)
        trouble = Unavailable("injected fault", verb=verb, kind=kind.name if kind else None)
        match kind:
            case Kind.ERROR_BEFORE | Kind.THROTTLED | Kind.QUOTA | Kind.COMPLETE_ERROR_ABSENT | Kind.RESET_IN_BODY:
                raise trouble
            case Kind.ERROR_AFTER | Kind.COMPLETE_ERROR_THERE:
                effect()
                raise trouble
            case Kind.TIMEOUT_BEFORE | Kind.TIMEOUT_AFTER:
                self.clock.now_ms += ATTEMPT_MS
                if kind is Kind.TIMEOUT_AFTER:
                    effect()
                raise trouble
            case Kind.EXPIRED_TOKEN:
                raise AccessDenied("injected fault", verb=verb, code="ExpiredToken")
            case Kind.HANG:
                self._hang(effect)
                raise trouble
            case Kind.SLOW:
                self.clock.now_ms += SLOW_MS
            case Kind.LATE_EFFECT:
                self._late.append((len(self.calls) - 1 + LATE_CALLS, effect))
                raise trouble
            case Kind.DUPLICATE:
                self._late.append((len(self.calls) - 1 + LATE_CALLS, effect))
            case Kind.FALSE_CONFLICT:
                effect()
                raise AlreadyExists("injected fault", verb=verb)
            case Kind.LOST_PART:
                return other["lost_part"]()
            case Kind.PARTIAL_DELETE:
                other["some"]()
                raise trouble
            case Kind.SILENT_DELETE:
                return None
            case _:
                pass
        return effect()

    def _hang(self, effect: Callable[[], Any]) -> None:
        """Block until `heal`, then apply the effect; the caller's thread may no longer wait for it."""
        done = threading.Event()
        self._hanging.append(done)
        self._let_go.wait(60)
        try:
            effect()
        except (LogError, RuntimeError):
            pass  # no caller receives the error
        finally:
            done.set()

    def _write(self, verb: str, keys: Sequence[str], effect: Callable[[], Any], **other: Callable[[], Any]) -> None:
        known = [(key, self._peek(key)) for key in keys]
        if verb == "delete":
            self._state.gone |= {key: body for key, body in known if body is not None}
        self._call(verb, effect, **other)
        self._state.before = [*self._state.before, *known][-WRITES_BEHIND:]
        if self._current.kind is Kind.NOT_FOUND_AFTER_PUT and verb in PUTS:
            self._hidden |= dict.fromkeys(keys, len(self.calls) + WINDOW_CALLS)

    def _read(self, verb: str, key: str, effect: Callable[[], Any], start: int = 0, length: int = 0) -> Any:
        found = self._call(verb, lambda: self._changing(verb, key, effect))
        number = self._current.number
        old = dict(reversed(self._state.before))
        is_stale = number < self._windows.get(Kind.STALE_READ, -1) and key in old and old[key] is None
        if is_stale or self._hidden.get(key, -1) > number:
            raise NotFound("injected fault, an older state", verb=verb, key=key)
        return _damaged(self._current.kind, found, self._peek(key) or b"", start) if verb in BODIES else found

    def _changing(self, verb: str, key: str, effect: Callable[[], Any]) -> Any:
        body = self._peek(key)
        is_hit = self._current.kind is Kind.CHANGED_OBJECT and verb in BODIES
        if is_hit and key not in self._changed and body is not None:
            self._changed[key] = body
            self.inner.put(key, bytes(byte ^ 0x5A for byte in body))
        return effect()

    def _listed(self, verb: str, effect: Callable[[], list[ObjectInfo]], prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = self._call(verb, effect)
        if self._current.kind is Kind.STALE_LIST:
            old = dict(reversed(self._state.before))
            found = [info for info in found if info.key not in old]
            found += [
                ObjectInfo(key=key, size_bytes=len(body))
                for key, body in old.items()
                if body is not None and key.startswith(prefix)
            ]
        if self._current.kind is Kind.PHANTOM_ENTRY:
            there = {info.key for info in found}
            gone = {key: body for key, body in self._state.gone.items() if key not in there and key.startswith(prefix)}
            found += [ObjectInfo(key=key, size_bytes=len(body)) for key, body in gone.items()]
        return sorted(found, key=lambda info: info.key)

    def _deliver(self, number: int) -> None:
        due = [effect for when, effect in self._late if when <= number]
        self._late = [each for each in self._late if each[0] > number]
        for effect in due:
            try:
                effect()
            except LogError:
                continue

    def _peek(self, key: str) -> bytes | None:
        try:
            return self.inner.get(key)
        except NotFound:
            return None


def _damaged(kind: Kind | None, found: bytes, whole: bytes, start: int) -> bytes:
    match kind:
        case Kind.SHORT_BODY:
            return found[: len(found) // 2]
        case Kind.BIT_FLIP:
            at = len(found) // 2
            return found[:at] + bytes([found[at] ^ 4]) + found[at + 1 :] if found else found
        case Kind.WRONG_RANGE:
            shifted = max(0, start - 1) if start else 1
            return (whole + b"\0")[shifted : shifted + len(found)]
        case Kind.WHOLE_FOR_RANGE:
            return whole
        case _:
            return found
