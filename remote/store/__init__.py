"""The object-store protocol and its implementations.

`protocol` has the operations and their guarantees. `open_store` opens a store by its URL. Each store has one module:
files, HDFS, memory, S3 by s3fs, S3 by obstore. Wrappers are in `middleware`.
"""

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
