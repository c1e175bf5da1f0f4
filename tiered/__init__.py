"""A tiered-storage log manager: Kafka's own format on the disk, closed segments in an object store.

The exported names load on first use, so importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiered.config.config import Config
    from tiered.manager.manager import LogManager
    from tiered.tables.remote_tables import open_remote

__version__ = "0.1.0"
__all__ = ["Config", "LogManager", "__version__", "open_remote"]

_HOMES = {
    "Config": "tiered.config.config",
    "LogManager": "tiered.manager.manager",
    "open_remote": "tiered.tables.remote_tables",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tiered' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
