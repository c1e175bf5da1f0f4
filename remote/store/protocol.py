"""The object-store protocol: the few operations of the remote tier, and the guarantees of each.

Keys are relative to the store's root, use ``/`` and never begin with it. Every implementation and every wrapper obeys
this contract; `tests/contract` runs one suite over all of them. All operations are thread safe. The only errors:
`NotFound`, `AlreadyExists`, `AccessDenied`, `Unavailable` (may be retried; the operation may or may not have taken
effect), `InvalidRequest`, `Corrupt` (an answer of the wrong length).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

from local.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from remote.segment_entry import PART_BYTES, part_step

Body = bytes | bytearray | memoryview
GetRange = tuple[str, int, int | None]  # key, start, length; length None for the whole object

T = TypeVar("T")
MISSING_TRIES = 3
ANOTHER_RANGE = "the store returned another range than requested"
KEY_BYTES_MAX = 1024  # S3's limit on a key
LIST_PAGE = 1000  # keys in one LIST response of S3
DELETE_PAGE = 1000  # keys of one DeleteObjects, S3's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """The store's facts about one object; `modified_ms` is by its clock, None if it gives no time."""

    key: str
    size_bytes: int
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSource:
    """Bytes to upload in parts, without holding all of them; the number of parts may be unknown.

    - Each call of `parts()` begins at the first part and gives the same bytes: a failed upload is retried from there.
    - A store takes the parts in order, from one thread. It holds unsent parts, and resends a failed one from memory.
    - Every part but the last has the same size, at least `remote.segment_entry.PART_BYTES`; the last may be smaller.
    - Errors of `parts()` and `read_again` pass through to the caller of the upload.

    With `read_again` a store may join parts to parts of `part_bytes`, a multiple of their size, that it does not hold:
    `read_again(start, length)` returns bytes that `parts()` gave, at any number of tries, from any thread.
    """

    parts: Callable[[], Iterator[Body]]
    part_bytes: int = PART_BYTES
    read_again: Callable[[int, int], Body] | None = None


class ObjectStore(Protocol):
    """The operations of a store. A subclass that reads sequentially inherits `get_ranges` and `get_each`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The location of the root, without any secret."""

    def put(self, key: str, body: Body) -> None:
        """Create or replace. Atomic: readers see all of the body or none."""

    def put_if_absent(self, key: str, body: Body) -> None:
        """Create, atomically, only if the key is free. Raises AlreadyExists if it is taken.

        AlreadyExists is **ambiguous** after a lost answer: the object may be the caller's own. Callers compare an
        identity inside the body. An empty body is rejected (InvalidRequest): some stores overwrite with it.
        """

    def upload(self, key: str, source: UploadSource) -> None:
        """Create or replace from `source`. Invisible until complete. An empty source is rejected."""

    def get(self, key: str) -> bytes:
        """The whole body. Raises NotFound."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`. Raises NotFound, Corrupt for an early end, Unavailable."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        """`get_range` of each (start, length), concurrently where the store can. The bodies are immutable."""
        return [self.get_range(key, start, length) for start, length in ranges]

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        """The bodies, in order, concurrently where the store can; None if missing or short. They are immutable."""
        return [read_if_there(self, each) for each in ranges]

    def head(self, key: str) -> ObjectInfo:
        """Size and time of one object. Raises NotFound."""

    def list_prefixes(self, prefix: str) -> list[str]:
        """The path components that begin with `prefix` and contain objects, sorted, without slashes.

        Each is the whole component after the last ``/`` of `prefix`: for ``"a/"`` all of them, for ``"a/b-"`` the ones
        that begin with ``b-``. Where the store can, it examines no others. Raises as `list` does.
        """

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects with `prefix` and a key after `start_after`, in key order. Never cached.

        Raises NotFound if the store's root (bucket, directory) does not exist. An empty prefix yields nothing.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing key is no error."""

    def close(self) -> None:
        """Close connections, if there are any. Idempotent."""
        return


def read_if_there(store: ObjectStore, wanted: GetRange) -> Body | None:
    key, start, length = wanted
    try:
        return store.get(key) if length is None else store.get_ranges(key, [(start, length)])[0]
    except (NotFound, Corrupt):
        return None


def read_named(ask: Callable[[], T]) -> T:
    """The result of `ask`, a read of an object that a manifest names: a 404 is final after MISSING_TRIES tries."""
    for _ in range(MISSING_TRIES - 1):
        with suppress(NotFound):
            return ask()
    return ask()


def parts_of(size_bytes: int) -> list[tuple[int, int]]:
    """(start, length) of each part of a body, in order. One part means one plain PUT."""
    step = part_step(size_bytes)
    return [(start, min(step, size_bytes - start)) for start in range(0, size_bytes, step)]


def ranged_source(size_bytes: int, read: Callable[[int, int], Body]) -> UploadSource:
    return UploadSource(parts=lambda: (read(start, length) for start, length in parts_of(size_bytes)))


def begun_parts(key: str, source: UploadSource) -> Iterator[Body]:
    """The parts of a source, the first one made. Raises InvalidRequest without one, or an empty one."""
    parts = source.parts()
    first = next(parts, b"")
    check_body(key, len(first))
    return chain([first], parts)


def check_key(key: str) -> str:
    """Return the key unchanged. Raises InvalidRequest if a store could read it as another name."""
    components = key.split("/")
    # s3fs reads a version id after a question mark.
    legal = key.isprintable() and "?" not in key and len(key.encode()) <= KEY_BYTES_MAX
    if not legal or any(each in ("", ".", "..") for each in components):
        raise InvalidRequest("invalid object key", key=repr(key))
    return key


def check_body(key: str, size_bytes: int) -> None:
    if size_bytes <= 0:
        raise InvalidRequest("cannot store an object, its body is empty", key=key)


def check_range(key: str, start: int, length: int) -> None:
    if start < 0 or length < 0:
        wrong = "cannot read a range of an object, the range is invalid"
        raise InvalidRequest(wrong, key=key, start=start, length=length)


def check_length(body: Body, attempt: str, facts: Mapping[str, object], length: int) -> None:
    """Raise Corrupt if a ranged GET ended early, Unavailable for a long answer (a proxy's error)."""
    if len(body) < length:
        raise Corrupt(f"{attempt}, the object ends before the range", **facts, found=len(body))
    if len(body) > length:
        raise Unavailable(f"{attempt}, {ANOTHER_RANGE}", **facts, found=len(body))
