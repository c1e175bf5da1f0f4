"""Fresh file systems of fsspec, for the stores that are built on its clients: the one door to fsspec itself.

The stores catch the errors that come out of them and translate; nothing here does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def make_filesystem(protocol: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """A fresh fsspec file system, its client built: never a shared one, so closing it takes nothing from anybody else.

    Left to itself it would build the client in its first request. Errors are the library's; the caller translates.
    """
    import fsspec

    filesystem = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    filesystem.connect()
    return filesystem


def make_hdfs_filesystem(authority: str, options: Mapping[str, str]) -> Any:  # noqa: ANN401
    """As `make_filesystem`, for HDFS. `authority` is ``host:port``, a nameservice, or "" for the default one."""
    import fsspec

    host, _, port = authority.partition(":")
    return fsspec.filesystem(
        "hdfs", host=host or None, port=int(port) if port else None, skip_instance_cache=True, **options
    )
