"""Fresh fsspec file systems for the stores: the only use of fsspec itself.

The stores translate the errors; nothing here does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def make_filesystem(protocol: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """Return a fresh fsspec file system with its client built.

    It is never shared, so closing it affects no other store. By default fsspec builds the client in its first request.
    Errors are the library's; the caller translates them.
    """
    import fsspec

    filesystem = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    filesystem.connect()
    return filesystem


def make_hdfs_filesystem(authority: str, options: Mapping[str, str]) -> Any:  # noqa: ANN401
    """As `make_filesystem`, for HDFS.

    `authority` is ``host:port``, a nameservice, or "" for the default one.
    """
    import fsspec

    host, _, port = authority.partition(":")
    return fsspec.filesystem(
        "hdfs", host=host or None, port=int(port) if port else None, skip_instance_cache=True, **options
    )
