"""A disk that forgets: an in-memory `Storage` which knows what was synced, and can crash at any call.

What survives a crash: of every file, the bytes up to its last sync and any prefix (or none, or garbage) of what came
after; of every directory, the names as of its last sync and any subset of the changes since. A `chooser` decides; the
tests enumerate or draw its choices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from local.errors import Conflict, DiskFailed, NotFound
from local.storage import Body, parent


class PowerCut(BaseException):
    """Not an Exception: no code under test may catch it."""


@dataclass
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


Change = tuple[str, str, str | None, _Inode]


class ModelDisk:
    """Counts every effect; `cut_at` makes the n-th the last, `fail_at` makes it fail (before it, or after it)."""

    def __init__(self) -> None:
        self.names: dict[str, _Inode] = {}
        self.durable: dict[str, _Inode] = {}
        self.pending: dict[str, list[Change]] = {}
        self.directories: set[str] = {"."}
        self.locks: set[str] = set()
        self.effects = 0
        self.cut_at: int | None = None
        self.cut_before = True
        self.fail_at: int | None = None
        self.journal: list[str] = []

    # -- cutting -------------------------------------------------------------------------------------------------

    def _effect(self, what: str, act: Callable[[], None]) -> None:
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

    def crash(self, rng: random.Random) -> ModelDisk:
        """A disk as it may be found after the power came back."""
        found = ModelDisk()
        found.directories = set(self.directories)
        names = dict(self.durable)
        for changes in self.pending.values():
            kept = _some(changes, rng)
            for change in kept:
                _replay(names, change)
        inodes: dict[int, _Inode] = {}
        for name, inode in names.items():
            if id(inode) not in inodes:
                inodes[id(inode)] = _survivor(inode, rng)
            found.names[name] = inodes[id(inode)]
        found.durable = dict(found.names)
        return found

    # -- Storage -------------------------------------------------------------------------------------------------

    def create(self, path: str) -> ModelFile:
        def act() -> None:
            inode = self.names.get(path)
            if inode is None:
                self.names[path] = inode = _Inode()
                self._change("create", path, None, inode)
            else:
                inode.data = bytearray()

        self._effect(f"create {path}", act)
        return ModelFile(self, path, self.names[path])

    def open(self, path: str) -> ModelFile:
        return ModelFile(self, path, self._inode(path))

    open_reader = open

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._inode(path).data
        return bytes(data[start:] if length is None else data[start : start + length])

    def map(self, path: str) -> memoryview:
        return memoryview(bytes(self._inode(path).data))

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.directories

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def modified_ms(self, path: str) -> int:
        self._inode(path)
        return 0

    def list(self, path: str) -> list[str]:
        if path not in self.directories:
            raise NotFound("listing a directory, there is none", path=path)
        below = path + "/"
        inside = [name for name in (*self.names, *self.directories) if name.startswith(below)]
        return sorted({name[len(below) :].split("/")[0] for name in inside})

    def is_directory(self, path: str) -> bool:
        return path in self.directories

    def make_directory(self, path: str) -> None:
        while path and path not in self.directories:
            self.directories.add(path)
            path = parent(path)

    def rename(self, source: str, target: str) -> None:
        def act() -> None:
            inode = self._inode(source)
            del self.names[source]
            self.names[target] = inode
            self._change("rename", source, target, inode)

        self._effect(f"rename {source} {target}", act)

    def unlink(self, path: str) -> None:
        if path not in self.names:
            return

        def act() -> None:
            inode = self.names.pop(path)
            self._change("unlink", path, None, inode)

        self._effect(f"unlink {path}", act)

    def remove_directory(self, path: str) -> None:
        self.directories.discard(path)

    def sync_directory(self, path: str) -> None:
        def act() -> None:
            self.pending.pop(path, None)
            for name in [name for name in self.durable if parent(name) == path]:
                del self.durable[name]
            self.durable.update({name: inode for name, inode in self.names.items() if parent(name) == path})

        self._effect(f"sync {path}/", act)

    def lock(self, path: str) -> _Held:
        if path in self.locks:
            raise Conflict("locking a directory, another process has it open", path=path)
        self.locks.add(path)
        return _Held(self, path)

    def _inode(self, path: str) -> _Inode:
        if path not in self.names:
            raise NotFound("opening a file, there is none", path=path)
        return self.names[path]

    def _change(self, kind: str, source: str, target: str | None, inode: _Inode) -> None:
        self.pending.setdefault(parent(source), []).append((kind, source, target, inode))


class _Held:
    def __init__(self, disk: ModelDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


class ModelFile:
    def __init__(self, disk: ModelDisk, path: str, inode: _Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode

    def append(self, data: Body) -> None:
        body = bytes(data)
        if body:
            self._disk._effect(f"append {self._path} {len(body)}", lambda: self._inode.data.extend(body))

    def read(self, start: int, length: int) -> bytes:
        return bytes(self._inode.data[start : start + length])

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        def act() -> None:
            del self._inode.data[size:]

        self._disk._effect(f"truncate {self._path} {size}", act)

    def sync(self) -> None:
        def act() -> None:
            self._inode.synced = bytes(self._inode.data)

        self._disk._effect(f"sync {self._path}", act)

    def close(self) -> None:
        pass


def _some(changes: list[Change], rng: random.Random) -> list[Change]:
    """All, none, a prefix or any subset of the unsynced changes of one directory."""
    match rng.randrange(4):
        case 0:
            return []
        case 1:
            return changes
        case 2:
            return changes[: rng.randrange(len(changes) + 1)]
        case _:
            return [change for change in changes if rng.random() < 0.5]


def _replay(names: dict[str, _Inode], change: Change) -> None:
    kind, source, target, inode = change
    match kind:
        case "create":
            names[source] = inode
        case "unlink":
            names.pop(source, None)
        case "rename":
            assert target is not None
            names.pop(source, None)
            names[target] = inode


def _survivor(inode: _Inode, rng: random.Random) -> _Inode:
    """Synced bytes for certain; of the rest everything, nothing, a prefix, or a prefix and then zeros or garbage."""
    synced, data = inode.synced, bytes(inode.data)
    if not data.startswith(synced):
        # Cut or rewritten since: either length may be found.
        data = data if rng.random() < 0.5 else synced
        return _Inode(bytearray(data), data)
    tail = data[len(synced) :]
    match rng.randrange(5):
        case 0:
            tail = b""
        case 1:
            pass
        case 2:
            tail = tail[: rng.randrange(len(tail) + 1)]
        case 3:
            cut = rng.randrange(len(tail) + 1)
            tail = tail[:cut] + bytes(len(tail) - cut)
        case _:
            cut = rng.randrange(len(tail) + 1)
            tail = tail[:cut] + rng.randbytes(len(tail) - cut)
    return _Inode(bytearray(synced + tail), synced + tail)
