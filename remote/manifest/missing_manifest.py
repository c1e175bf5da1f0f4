"""Find the reason why a partition's listing shows no manifest, from the other objects of the store.

| the store has | error | why |
|---|---|---|
| manifest 1, or the first GC boundary | Unavailable | the listing hides objects that exist |
| other objects with names of this software | Corrupt | a partition's first object is its manifest, and its last stays |
| nothing, or only other names | NotFound | no writer has opened the partition yet |

A reader that took such a partition for an empty one would hide all of its records.

The other objects are listed before manifest 1 is requested. A writer creates the manifest first. So objects of a
partition that a writer opens during this check are never taken for objects without a manifest.
"""

from __future__ import annotations

from itertools import islice

from local.errors import Corrupt, LogError, NotFound, Unavailable
from remote.keys import boundary_key, manifest_key, parse_boundary_key, parse_epoch, parse_pin_key
from remote.store import ObjectStore

FIRST = 1  # the number of the first manifest and of the first boundary


def missing_manifest_error(store: ObjectStore, prefix: str) -> LogError:
    """The error of the table. A listing and two GETs; raises the store's errors."""
    facts = {"store": store.url, "prefix": prefix}
    names = (info.key.removeprefix(prefix) for info in store.list(prefix))
    others = list(islice(filter(_is_ours, names), 1))
    keys = [prefix + manifest_key(FIRST), prefix + boundary_key(FIRST)]
    bodies = store.get_each([(key, 0, None) for key in keys])
    there = [key for key, body in zip(keys, bodies, strict=True) if body is not None]
    if there:
        attempt = "cannot find the manifest of a partition, the listing omits objects that exist"
        return Unavailable(attempt, **facts, key=there[0])
    if others:
        attempt = "the partition has objects and no manifest: run 'tiered scrub' to list them"
        return Corrupt(attempt, **facts, object=prefix + others[0])
    return NotFound("the partition has no manifest", **facts)


def _is_ours(key: str) -> bool:
    """Whether only a writer, a reader's pin or GC makes an object of this name."""
    return any(parse(key) is not None for parse in (parse_epoch, parse_boundary_key, parse_pin_key))
