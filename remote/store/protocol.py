"""The object-store protocol: the few verbs the remote tier needs, and what each of them promises.

Keys are relative to the store's root, use ``/`` and never begin with it. Bodies are bytes. Every implementation and
every wrapper (retrying, metered, faulty) keeps this contract; `tests/contract` runs one suite over all of them.

Errors, and no others: `NotFound`, `AlreadyExists`, `AccessDenied`, `Unavailable` (may be retried), `InvalidRequest`,
`Corrupt` (an answer of the wrong length). A verb that raises `Unavailable` may or may not have taken effect.
Thread safety: all verbs may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

from local.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from remote.segment_entry import part_step

Body = bytes | bytearray | memoryview
Asked = tuple[str, int, int | None]  # key, start, length; None for the whole object

T = TypeVar("T")
MISSING_TRIES = 3
ANOTHER_RANGE = "the store answered another range than was asked for"
KEY_BYTES_MAX = 1024  # S3's limit on a key


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What the store says about one object. `modified_ms` is the store's clock, None where it does not tell."""

    key: str
    size_bytes: int
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSource:
    """Bytes to upload without holding them all, in parts; how many there will be need not be known before.

    `parts()` begins at the beginning, every time it is called: an upload that failed as a whole is tried again from
    there, and gives the same bytes. A store takes one part after the other, from one thread, and holds those that it
    has not yet sent; one that failed it sends again from what it holds. Every part but the last has the same size, at
    least `remote.segment_entry.PART_BYTES`; only the last may be smaller. What `parts()` raises goes to whoever
    uploads.
    """

    parts: Callable[[], Iterator[Body]]


class ObjectStore(Protocol):
    """See the module text for the contract that goes for all verbs."""

    @property
    def url(self) -> str:
        """Where the root lies, without any secret."""
        ...

    def put(self, key: str, body: Body) -> None:
        """Create or replace. Atomic: readers see all of the body or none."""
        ...

    def put_if_absent(self, key: str, body: Body) -> None:
        """Create, atomically, only if the key is free. Raises AlreadyExists when it is taken.

        AlreadyExists is **ambiguous** after a lost answer: the object may be our own. Callers compare an identity
        inside the body. An empty body is refused (InvalidRequest): some stores overwrite with it.
        """
        ...

    def upload(self, key: str, source: UploadSource) -> None:
        """Create or replace from `source`, in parts where it is large. Invisible until complete. Empty is refused."""
        ...

    def get(self, key: str) -> bytes:
        """The whole body. Raises NotFound."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`.

        Raises NotFound; Corrupt when the object ends before; Unavailable for the answer to another range.
        """
        ...

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        """As `get_range` for each (start, length), in order, concurrently where the store can.

        Immutable; each may be a view of what the client received, so that what is long is not copied.
        """
        ...

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        """What is asked for, in order, at once where the store can; None for what is not there or ends before.

        For what may be in vain, so that it costs no time. Immutable, as those of `get_ranges`.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size and time of one object. Raises NotFound."""
        ...

    def list_prefixes(self, prefix: str) -> list[str]:
        """The path components that begin with `prefix` and have objects below them, sorted, without slashes.

        Given is the component that follows the last ``/`` of `prefix`, whole: below ``"a/"`` all of them, below
        ``"a/b-"`` those that begin with ``b-``. Where the store can, it looks at no others. Raises as `list` does.
        """
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix` and sorts after `start_after`, in key order. Never a cached answer.

        Raises NotFound when the store's root (bucket, directory) does not exist; none below a prefix is just nothing.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; a missing key is no error."""
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...


def read_each(store: ObjectStore, asked: Sequence[Asked]) -> list[Body | None]:
    """`get_each` of a store that reads one after another."""
    return [read_if_there(store, each) for each in asked]


def read_if_there(store: ObjectStore, asked: Asked) -> Body | None:
    """One of `get_each`."""
    key, start, length = asked
    try:
        return store.get(key) if length is None else store.get_ranges(key, [(start, length)])[0]
    except (NotFound, Corrupt):
        return None


def read_named(ask: Callable[[], T]) -> T:
    """What `ask` gives of an object that a manifest names: a 404 counts once the store has said so MISSING_TRIES times.

    An answer of 404 may be of one node of the store alone. Raises NotFound; the caller asks the newest manifest then.
    """
    for _ in range(MISSING_TRIES - 1):
        with suppress(NotFound):
            return ask()
    return ask()


def parts_of(size_bytes: int) -> list[tuple[int, int]]:
    """How a body of this size goes up: (start, length) of each part, in order. One part means one plain PUT."""
    step = part_step(size_bytes)
    return [(start, min(step, size_bytes - start)) for start in range(0, size_bytes, step)]


def ranged_source(size_bytes: int, read: Callable[[int, int], Body]) -> UploadSource:
    """The source of a body of known size of which `read(start, length)` gives any range."""
    return UploadSource(parts=lambda: (read(start, length) for start, length in parts_of(size_bytes)))


def begun_parts(key: str, source: UploadSource) -> Iterator[Body]:
    """The parts of a source, the first one made already. Raises InvalidRequest when there is none, or an empty one."""
    parts = source.parts()
    first = next(parts, b"")
    check_body(key, len(first))
    return chain([first], parts)


def check_key(key: str) -> str:
    """The key unchanged. Raises InvalidRequest where some store would read it as another name."""
    components = key.split("/")
    # A question mark begins a version id for s3fs.
    legal = key.isprintable() and "?" not in key and len(key.encode()) <= KEY_BYTES_MAX
    if not legal or any(each in ("", ".", "..") for each in components):
        raise InvalidRequest("naming an object, not a legal key", key=repr(key))
    return key


def check_body(key: str, size_bytes: int) -> None:
    """Raises InvalidRequest for an empty body."""
    if size_bytes <= 0:
        raise InvalidRequest("storing an object, the body is empty", key=key)


def check_range(key: str, start: int, length: int) -> None:
    """Raises InvalidRequest for a range that no object can have."""
    if start < 0 or length < 0:
        raise InvalidRequest("reading a range of an object, not a range", key=key, start=start, length=length)


def check_length(body: Body, attempt: str, facts: Mapping[str, object], length: int) -> None:
    """Of a ranged GET: raises Corrupt where the answer is short, Unavailable where it is long.

    A short answer is what an object gives that ends there. No object makes an answer long: that is of the store, or of
    a proxy before it, and another try may be answered rightly.
    """
    if len(body) < length:
        raise Corrupt(f"{attempt}, it ends before", **facts, found=len(body))
    if len(body) > length:
        raise Unavailable(f"{attempt}, {ANOTHER_RANGE}", **facts, found=len(body))
