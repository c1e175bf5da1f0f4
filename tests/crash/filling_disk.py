"""A modelled disk that has no room from some effect on."""

from __future__ import annotations

from collections.abc import Callable

from disk_model import ModelDisk

from local.errors import DiskFailed

NEEDS_ROOM = ("append", "create", "mkdir")


class FillingDisk(ModelDisk):
    """From its effect `full_from` on it has no room, until `is_empty`; half of what is appended fits."""

    full_from: int | None = None
    refused = 0

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        if self.full_from is not None and self.effects >= self.full_from and what.startswith(NEEDS_ROOM):
            self.refused += 1
            if what.startswith("append"):
                act()
                inode, size = self._inode(what.split()[1]), int(what.split()[2])
                inode.resize(len(inode.data) - size + size // 2)
            raise DiskFailed("writing to a file", what=what, cause="enospc")
        super()._effect(what, act)
