"""One partition's log on a disk.

- `log` is the public class: open, append, read, truncate, delete. Start there.
- `loading` and `recovery` open a directory after a crash. `read_only_open` opens one that another process writes.
- `producer_state` keeps idempotent producers and transactions.
- `cleaning_state` keeps the cleaner and other changes of a log apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local.log.append_result import AppendResult, Durability
    from local.log.log import Log

__all__ = ["AppendResult", "Durability", "Log"]

_HOMES = {
    "AppendResult": "local.log.append_result",
    "Durability": "local.log.append_result",
    "Log": "local.log.log",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562): the other modules of this folder load without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
