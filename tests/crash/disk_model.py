"""A disk model that loses unsynced data: an in-memory `Storage` that can crash at any call.

What survives a crash (any state that POSIX allows, and more than most file systems produce):

* A file has the bytes of its last `sync`. Of the later writes and truncations any subset survives: all, none, a prefix
  torn at a byte or at a boundary of 512 or 4096, a later write without an earlier one, single sectors in any order.
  Missing bytes below the length found read as zeros or as garbage.
* A directory has the entries of its last `sync_directory`. Of the later changes a prefix survives (an ordered journal,
  as in ext4) or any subset. Each change is whole: a rename is never half done.

Further rules:

* A file whose name survives without its bytes has any length from 0: the result of a rename before a sync.
* A sector with synced bytes is never damaged by a torn write behind them (disks write sectors whole).
* `make_directory` is durable, as its contract says. `make_directories` makes names that are durable after the last
  sync.
* Nothing that was synced is lost.

`watch` is called after every effect. An explorer takes crash states there with `crash`, so a workload runs once for any
number of states. States share file contents until one of them is written.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from local.errors import Conflict, DiskFailed, NotFound
from local.names import META_PROPERTIES
from local.storage import Body, FileFacts, Space, parent


class PowerCut(BaseException):
    """Not an Exception, so that no code under test can catch it."""


class Inode:
    """The bytes of one file: `synced` is durable, `unsynced` lists changes, `live` is the content."""

    __slots__ = ("live", "modified_ms", "synced", "unsynced")

    def __init__(self, found: bytes = b"") -> None:
        self.synced = found
        self.live: bytes | bytearray = found
        self.modified_ms = 0  # last value set; no write changes it
        self.unsynced: list[tuple[int, bytes | None]] = []  # (position, bytes written) or (new size, None)

    @property
    def data(self) -> bytearray:
        """The live bytes, for inspection and for damage."""
        if not isinstance(self.live, bytearray):
            self.live = bytearray(self.live)
        return self.live

    @data.setter
    def data(self, body: Body) -> None:
        self.live = bytearray(body)

    def write(self, body: bytes) -> None:
        self.unsynced.append((len(self.live), body))
        self.data.extend(body)

    def resize(self, size: int) -> None:
        self.unsynced.append((size, None))
        _resize(self.data, size)

    def sync(self) -> None:
        self.synced = self.live = bytes(self.live)
        self.unsynced = []


@dataclass(eq=False)
class Directory:
    """A directory; `durable` holds the entries that survive any crash."""

    durable: dict[str, Inode | Directory] = field(default_factory=dict)


Entry = tuple[Directory, str, "Inode | Directory | None"]
Change = tuple[Entry, ...]


class ModelDisk:
    """Counts every effect. `cut_at` makes the n-th the last; `fail_at` makes the n-th fail."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.directories: dict[str, Directory] = {".": Directory()}
        self.pending: list[Change] = []
        self.locks: set[str] = set()
        self.effects = 0
        self.cut_at: int | None = None
        self.cut_before = True
        self.fail_at: int | None = None
        self.journal: list[str] = []
        self.watch: Callable[[], None] | None = None
        self.is_gone = False  # the process that has it open is dead and has no further effects

    # --- power cuts -------------------------------------------------------------------------------------------------

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        if self.is_gone:
            raise PowerCut(what)
        self.effects += 1
        self.journal.append(what)
        if self.effects == self.cut_at and self.cut_before:
            raise PowerCut(what)
        if self.effects == self.fail_at:
            if self.cut_before is False:
                act()
            raise DiskFailed(f"injected: {what}", path="model")
        act()
        if self.effects == self.cut_at:
            raise PowerCut(what)
        if self.watch is not None:
            self.watch()

    def crash(self, rng: random.Random) -> ModelDisk:
        """A disk in a state that may be found after the power returns."""
        entries = {id(each): dict(each.durable) for each in self.directories.values()}
        for change in _surviving_changes(self.pending, rng):
            for directory, name, node in change:
                inside = entries.setdefault(id(directory), dict(directory.durable))
                if node is None:
                    inside.pop(name, None)
                else:
                    inside[name] = node
        found = ModelDisk()
        _rebuild(found, ".", self.directories["."], entries, rng, {})
        return found

    def digest(self) -> bytes:
        """A digest that is equal for equal contents; the random id of a log directory does not count."""
        state = hashlib.blake2b(digest_size=8)
        for path in sorted(self.directories):
            state.update(path.encode() + b"/")
        for path, inode in sorted(self.names.items()):
            body = inode.live
            state.update(f"\0{path}\0{len(body)}\0".encode())
            if not path.endswith(META_PROPERTIES):
                state.update(body)
        return state.digest()

    # -- Storage -------------------------------------------------------------------------------------------------

    def create(self, path: str) -> ModelFile:
        def act() -> None:
            inode = self.names.get(path)
            if inode is None:
                self.names[path] = inode = Inode()
                self._change(self._entry(path, inode))
            else:
                inode.resize(0)

        self._effect(f"create {path}", act)
        return ModelFile(self, path, self.names[path])

    def open(self, path: str) -> ModelFile:
        return ModelFile(self, path, self._inode(path))

    open_reader = open

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._inode(path).live
        return bytes(data[start:] if length is None else data[start : start + length])

    def map(self, path: str) -> memoryview:
        return memoryview(bytes(self._inode(path).live))

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.directories

    def size(self, path: str) -> int:
        return len(self._inode(path).live)

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._inode(path).modified_ms = modified_ms

    def space(self, path: str) -> Space | None:
        return None

    def list(self, path: str) -> list[str]:
        if path not in self.directories:
            raise NotFound("cannot list a directory, it does not exist", path=path)
        below = path + "/"
        start = len(below)
        inside = [*self.names, *self.directories]
        return sorted({name[start:].split("/", 1)[0] for name in inside if name.startswith(below)})

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        below = path + "/"
        return {
            name: FileFacts(len(self.names[below + name].data), 0)
            for name in self.list(path)
            if below + name in self.names and name.endswith(endings)
        }

    def is_directory(self, path: str) -> bool:
        return path in self.directories

    def make_directory(self, path: str) -> None:
        if not path or path in self.directories:
            return
        self.make_directory(parent(path))

        def act() -> None:
            made = self.directories[path] = Directory()
            above, name, _ = self._entry(path, made)
            above.durable[name] = made

        self._effect(f"mkdir {path}", act)

    def make_directories(self, paths: Sequence[str]) -> None:
        missing = [path for path in paths if path not in self.directories]
        above = dict.fromkeys(map(parent, missing))
        for each in above:
            self.make_directory(each)
        for each in missing:
            self._effect(f"mkdir {each}", partial(self._made, each))
        for each in above:
            self.sync_directory(each)

    def _made(self, path: str) -> None:
        """Make a directory; its name is durable only after the sync of its parent."""
        made = self.directories[path] = Directory()
        self._change(self._entry(path, made))

    def rename(self, source: str, target: str) -> None:
        def act() -> None:
            if source in self.directories:
                node: Inode | Directory = self.directories[source]
                _move(self.directories, source, target)
                _move(self.names, source, target)
            else:
                node = self.names[target] = self._inode(source)
                del self.names[source]
            self._change(self._entry(source, None), self._entry(target, node))

        self._effect(f"rename {source} {target}", act)

    def unlink(self, path: str) -> None:
        if path not in self.names:
            return

        def act() -> None:
            del self.names[path]
            self._change(self._entry(path, None))

        self._effect(f"unlink {path}", act)

    def remove_directory(self, path: str) -> None:
        if path not in self.directories:
            return

        def act() -> None:
            if self.list(path):
                raise DiskFailed("cannot remove a directory", path=path, cause="enotempty")
            self._change(self._entry(path, None))
            del self.directories[path]

        self._effect(f"rmdir {path}", act)

    def sync_directory(self, path: str) -> None:
        def act() -> None:
            synced = self.directories.get(path)
            still: list[Change] = []
            for change in self.pending:
                if any(directory is synced for directory, _, _ in change):
                    _make_durable(change)
                else:
                    still.append(change)
            self.pending = still

        self._effect(f"sync {path}/", act)

    def lock(self, path: str) -> _Held:
        if path in self.locks:
            raise Conflict("another process holds the lock of the directory", path=path)
        self.locks.add(path)
        return _Held(self, path)

    def _inode(self, path: str) -> Inode:
        if path not in self.names:
            raise NotFound("cannot open a file, it does not exist", path=path)
        return self.names[path]

    def _entry(self, path: str, node: Inode | Directory | None) -> Entry:
        above = parent(path)
        if above not in self.directories:
            raise NotFound("reaching a file, its directory is not there", path=path)
        return self.directories[above], _name(above, path), node

    def _change(self, *entries: Entry) -> None:
        self.pending.append(entries)


class _Held:
    def __init__(self, disk: ModelDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


class ModelFile:
    def __init__(self, disk: ModelDisk, path: str, inode: Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode

    def append(self, data: Body) -> None:
        body = bytes(data)
        if body:
            self._disk._effect(f"append {self._path} {len(body)}", lambda: self._inode.write(body))

    def read(self, start: int, length: int) -> bytes:
        return bytes(self._inode.live[start : start + length])

    def size(self) -> int:
        return len(self._inode.live)

    def truncate(self, size: int) -> None:
        self._disk._effect(f"truncate {self._path} {size}", lambda: self._inode.resize(size))

    def sync(self) -> None:
        self._disk._effect(f"sync {self._path}", self._inode.sync)

    def close(self) -> None:
        pass


def _name(above: str, path: str) -> str:
    """The name of an entry in its directory; at the top the whole path, with or without ``./``."""
    return path if above == "." else path[len(above) + 1 :]


def _move(paths: dict[str, Inode] | dict[str, Directory], source: str, target: str) -> None:
    for path in [path for path in paths if path == source or path.startswith(source + "/")]:
        paths[target + path[len(source) :]] = paths.pop(path)  # type: ignore[assignment]


def _make_durable(change: Change) -> None:
    for directory, name, node in change:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node


def _rebuild(
    found: ModelDisk,
    path: str,
    directory: Directory,
    entries: dict[int, dict[str, Inode | Directory]],
    rng: random.Random,
    known: dict[int, Inode],
) -> None:
    made = found.directories.setdefault(path, Directory())
    for name, node in entries.get(id(directory), directory.durable).items():
        inside = name if path == "." else f"{path}/{name}"
        if isinstance(node, Directory):
            found.directories[inside] = made.durable[name] = Directory()
            _rebuild(found, inside, node, entries, rng, known)
            continue
        survivor = known.get(id(node))
        if survivor is None:
            survivor = known[id(node)] = Inode(_survivor(node, rng))
            survivor.modified_ms = node.modified_ms
        made.durable[name] = found.names[inside] = survivor


def _surviving_changes(changes: list[Change], rng: random.Random) -> Iterable[Change]:
    """All, none, a prefix, or any subset of the unsynced changes.

    Subsets: all but one, one alone, or each change with even odds.
    """
    if not changes:
        return ()
    pick = rng.randrange(len(changes))
    match rng.randrange(6):
        case 0:
            return ()
        case 1:
            return changes
        case 2:
            return changes[:pick]
        case 3:
            return (*changes[:pick], *changes[pick + 1 :])
        case 4:
            return (changes[pick],)
        case _:
            return [change for change in changes if rng.random() < 0.5]


def _survivor(inode: Inode, rng: random.Random) -> bytes:
    """The synced bytes, and a random choice of the later writes."""
    steps = inode.unsynced
    if not steps:
        return inode.synced
    pick = rng.randrange(len(steps) + 1)
    match rng.randrange(8):
        case 0:
            return inode.synced
        case 1:
            return _replayed(inode.synced, steps)
        case 2:
            return _torn(_replayed(inode.synced, steps[: pick + 1]), len(_replayed(inode.synced, steps[:pick])), rng)
        case 3:
            return _torn(_replayed(inode.synced, steps), len(inode.synced), rng)
        case 4:
            return _unwritten(_replayed(inode.synced, steps), len(inode.synced), rng)
        case 5:
            return _replayed(inode.synced, [*steps[:pick], *steps[pick + 1 :]])
        case 6:
            return _replayed(inode.synced, [step for step in steps if rng.random() < 0.5])
        case _:
            return _scattered(inode.synced, _replayed(inode.synced, steps), rng)


def _replayed(start: bytes, steps: Iterable[tuple[int, bytes | None]]) -> bytes:
    body = bytearray(start)
    for position, written in steps:
        if written is None:
            _resize(body, position)
        else:
            if len(body) < position:
                _resize(body, position)
            body[position : position + len(written)] = written
    return bytes(body)


def _torn(body: bytes, sure: int, rng: random.Random) -> bytes:
    """Truncate at a byte or at a sector, never below the synced size."""
    if len(body) <= sure:
        return body
    cut = rng.randrange(sure, len(body) + 1)
    sector = rng.choice((1, 1, 512, 4096))
    return body[: max(sure, cut - cut % sector)]


def _unwritten(body: bytes, sure: int, rng: random.Random) -> bytes:
    """Keep the full length; the last bytes are zeros or the earlier contents of the sectors."""
    cut = rng.randrange(min(sure, len(body)), len(body) + 1)
    size = len(body) - cut
    return body[:cut] + (bytes(size) if rng.random() < 0.5 else rng.randbytes(size))


def _scattered(synced: bytes, body: bytes, rng: random.Random) -> bytes:
    """Apply sectors in any order: each one is new, or as it was before (zeros beyond the old end)."""
    found = bytearray(body)
    sector = rng.choice((64, 512))
    # The sector with the last synced bytes survives whole. A sector that was truncated and rewritten may be old or new.
    first = len(synced) if body.startswith(synced) else 0
    start = first
    while start < len(body):
        end = min((start // sector + 1) * sector, len(body))
        if rng.random() < 0.4:
            found[start:end] = synced[start:end].ljust(end - start, b"\0")
        start = end
    return bytes(found)


def _resize(body: bytearray, size: int) -> None:
    if size < len(body):
        del body[size:]
    else:
        body.extend(bytes(size - len(body)))
