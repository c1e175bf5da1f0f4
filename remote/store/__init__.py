"""The object-store protocol and its implementations.

`protocol` has the verbs and what each promises; `open_store` opens a store by its URL; there is one module for each
store (files, HDFS, memory, S3 by s3fs, S3 by obstore). Wrappers: `middleware`.
"""

from remote.store.protocol import (
    MISSING_TRIES,
    Asked,
    Body,
    ObjectInfo,
    ObjectStore,
    UploadSource,
    parts_of,
    ranged_source,
    read_each,
    read_if_there,
    read_named,
)

__all__ = [
    "MISSING_TRIES",
    "Asked",
    "Body",
    "ObjectInfo",
    "ObjectStore",
    "UploadSource",
    "parts_of",
    "ranged_source",
    "read_each",
    "read_if_there",
    "read_named",
]
