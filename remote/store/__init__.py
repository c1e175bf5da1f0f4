"""The object-store protocol and its implementations. Start with `protocol` and `open_store`."""

from remote.store.protocol import (
    DELETE_PAGE,
    LIST_PAGE,
    MISSING_TRIES,
    Body,
    GetRange,
    ObjectInfo,
    ObjectStore,
    UploadSource,
    parts_of,
    ranged_source,
    read_if_there,
    read_named,
)

__all__ = [
    "DELETE_PAGE",
    "LIST_PAGE",
    "MISSING_TRIES",
    "Body",
    "GetRange",
    "ObjectInfo",
    "ObjectStore",
    "UploadSource",
    "parts_of",
    "ranged_source",
    "read_if_there",
    "read_named",
]
