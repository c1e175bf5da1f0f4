"""A storage in which single log directories fail, with the files open in them."""

from __future__ import annotations

from collections.abc import Callable

from disk_model import ModelDisk

from local.errors import DiskFailed
from local.storage import Space


class BrokenDisk:
    """A `ModelDisk` with several roots. `break_after` gives the call at which each root breaks."""

    def __init__(self, inner: ModelDisk | None = None) -> None:
        self.inner = inner or ModelDisk()
        self.broken: dict[str, str | None] = {}  # root: cause
        self.break_after: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.failing_once: dict[tuple[str, int], str] = {}
        self.spaces: dict[str, Space] = {}

    def check(self, *paths: object) -> None:
        for path in paths:
            root = self.root(path)
            self.calls[root] = self.calls.get(root, 0) + 1
            if self.break_after.get(root) == self.calls[root]:
                self.broken[root] = "eio"
            once = self.failing_once.pop((root, self.calls[root]), None)
            if once is not None:
                raise DiskFailed("injected", path=path, cause=once)
            if root in self.broken:
                raise DiskFailed("injected", path=path, cause=self.broken[root])

    def fail_once(self, root: str, call: int, cause: str) -> None:
        """Make the `call`-th call below `root` fail; later calls succeed."""
        self.failing_once[root, call] = cause

    def root(self, path: object) -> str:
        """The root of a path: ``./a`` for ``./a/t-0/x.log``."""
        return "/".join(str(path).split("/")[:2])

    def space(self, path: str) -> Space | None:
        self.check(path)
        return self.spaces.get(path)

    def __getattr__(self, verb: str) -> Callable[..., object]:
        act = getattr(self.inner, verb)

        def call(path: str, *rest: object, **more: object) -> object:
            self.check(path, *(rest if verb == "rename" else ()))
            found = act(path, *rest, **more)
            return _File(self, path, found) if verb in ("create", "open", "open_reader") else found

        return call


class _File:
    def __init__(self, disk: BrokenDisk, path: str, inner: object) -> None:
        self._disk, self._path, self._inner = disk, path, inner

    def __getattr__(self, verb: str) -> Callable[..., object]:
        act = getattr(self._inner, verb)

        def call(*rest: object) -> object:
            if verb != "close":
                self._disk.check(self._path)
            return act(*rest)

        return call
