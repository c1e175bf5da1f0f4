"""A modelled disk that becomes full at a chosen effect."""

from __future__ import annotations

from collections.abc import Callable

from disk_model import ModelDisk

from local.errors import DiskFailed

NEEDS_ROOM = ("append", "create", "mkdir")


class FillingDisk(ModelDisk):
    """A disk without free space from its effect `full_from` on; half of each append fits.

    Setting `full_from` to None frees the disk.

    A rename needs no space where a file has, or had, the new name: ext4 adds a block to a directory for a name and
    never takes it back.
    """

    full_from: int | None = None
    refused = 0
    refused_renames = 0

    def __init__(self) -> None:
        super().__init__()
        self._places: set[str] = set()  # in directories

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        self._places.update(self.names)
        if self.full_from is not None and self.effects >= self.full_from and self._needs_room(what):
            self.refused += 1
            self.refused_renames += what.startswith("rename")
            if what.startswith("append"):
                act()
                inode, size = self._inode(what.split()[1]), int(what.split()[2])
                inode.resize(len(inode.data) - size + size // 2)
            raise DiskFailed("cannot write to a file", what=what, cause="enospc")
        super()._effect(what, act)

    def _needs_room(self, what: str) -> bool:
        is_new_name = what.startswith("rename") and what.split()[2] not in self._places
        return is_new_name or what.startswith(NEEDS_ROOM)
