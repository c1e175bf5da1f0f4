"""Where the key ring comes from: a file, or the environment. Keys never stand in ``tiered.toml``, only the file's name.

A ring is text, a key a line: its id, then 32 bytes in base64 (``openssl rand -base64 32``). ``TIERED_KEY_RING`` names a
file and outranks the configuration; ``TIERED_KEYS`` is a ring itself, with semicolons for line ends, and outranks both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from local.errors import AccessDenied, InvalidRequest, NotFound
from remote.encryption import NO_KEYS, KeyRing, parse_key_ring
from remote.sealing import keyed
from remote.store import ObjectStore

FILE_VARIABLE, KEYS_VARIABLE = "TIERED_KEY_RING", "TIERED_KEYS"


def load_key_ring(path: str | None, environ: Mapping[str, str]) -> KeyRing:
    """The ring of this process; `path` is the configuration's. An empty one where nothing is said.

    Raises NotFound for a file that is not there, InvalidRequest for one that is no key ring; no error shows a key.
    """
    if keys := environ.get(KEYS_VARIABLE):
        return parse_key_ring(keys.split(";"), KEYS_VARIABLE)
    path = environ.get(FILE_VARIABLE) or path
    return _read(path) if path else NO_KEYS


def keyed_store(store: ObjectStore, path: str | None) -> ObjectStore:
    """The store with the ring that `load_key_ring` finds for this process: encrypted topics open in it."""
    return keyed(store, load_key_ring(path, os.environ))


def _read(path: str) -> KeyRing:
    try:
        with open(path, encoding="ascii") as file:
            return parse_key_ring(file, path)
    except FileNotFoundError:
        raise NotFound("reading a key ring, no such file", file=path) from None
    except PermissionError:
        raise AccessDenied("reading a key ring, no permission", file=path) from None
    except (UnicodeDecodeError, OSError) as error:
        raise InvalidRequest("reading a key ring, it cannot be read", file=path, cause=type(error).__name__) from None
