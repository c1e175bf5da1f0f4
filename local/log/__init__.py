"""One partition's log on a disk. Start with `log`, the public class."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local.log.log import AppendResult, Durability, Log

__all__ = ["AppendResult", "Durability", "Log"]


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562): the other modules of this folder load without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("local.log.log"), name)
