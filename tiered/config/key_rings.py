"""Load the key ring from a file or the environment. ``tiered.toml`` names the file and never has keys.

A ring is text with a key per line: its id, then 32 bytes in base64 (``openssl rand -base64 32``). A line ``@require``
names topics that must be encrypted, or ``*`` (`remote.segments.encryption.KeyRing.requires`). ``TIERED_KEY_RING`` names
a file and outranks the configuration. ``TIERED_KEYS`` is a ring itself, with semicolons for line ends, and outranks
both.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping

from local.errors import AccessDenied, InvalidRequest, NotFound
from remote.manifest.sealing import keyed
from remote.segments.encryption import NO_KEYS, KeyRing, parse_key_ring
from remote.store import ObjectStore

_OPEN_BITS = stat.S_IRWXO | stat.S_IWGRP
FILE_VARIABLE, KEYS_VARIABLE = "TIERED_KEY_RING", "TIERED_KEYS"


def load_key_ring(path: str | None, environ: Mapping[str, str]) -> KeyRing:
    """The ring of this process; `path` is the configuration's. Empty if none is configured.

    Raises NotFound for a missing file. Raises InvalidRequest for a file that is no key ring, or that other users may
    read. No error shows a key.
    """
    if keys := environ.get(KEYS_VARIABLE):
        return parse_key_ring(keys.split(";"), KEYS_VARIABLE)
    path = environ.get(FILE_VARIABLE) or path
    return _read(path) if path else NO_KEYS


def keyed_store(store: ObjectStore, path: str | None) -> ObjectStore:
    """The store with the ring that `load_key_ring` finds; encrypted topics are readable in it."""
    return keyed(store, load_key_ring(path, os.environ))


def _check_private(path: str, mode: int) -> None:
    """Check the permissions of a key ring.

    Raises InvalidRequest if other users may read or change the file, or its group may change it. The group may read it:
    platforms that mount secrets give them to a service by its group.
    """
    if mode & _OPEN_BITS:
        step = f"run chmod 600 {shlex.quote(path)}, and replace the keys if another user may have read them"
        wrong = f"cannot use the key ring, other users may read or change the file: {step}"
        raise InvalidRequest(wrong, file=path, mode=f"{stat.S_IMODE(mode):04o}", allowed="0600 or 0640")


def _read(path: str) -> KeyRing:
    try:
        with open(path, encoding="ascii") as file:
            _check_private(path, os.fstat(file.fileno()).st_mode)
            return parse_key_ring(file, path)
    except FileNotFoundError:
        raise NotFound("the key ring file does not exist", file=path) from None
    except PermissionError:
        raise AccessDenied("cannot read the key ring, access was denied", file=path) from None
    except (UnicodeDecodeError, OSError) as error:
        raise InvalidRequest("cannot read the key ring", file=path, cause=type(error).__name__) from None
