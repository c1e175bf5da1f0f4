"""Keep secrets out of configuration files: option names that look like one, and key rings.

A key ring is text with a key a line: its id, then 32 bytes in base64. A line ``@require`` names topics that must be
encrypted, or ``*``. ``tiered.toml`` names the file; ``TIERED_KEY_RING`` outranks it. ``TIERED_KEYS`` is a ring with
semicolons for line ends, and outranks both.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, urlsplit

from local.errors import AccessDenied, InvalidRequest, NotFound
from remote.manifest.sealing import keyed
from remote.segments.encryption import NO_KEYS, KeyRing, parse_key_ring
from remote.store import ObjectStore

_MARKS = ("secret", "password", "passwd", "token", "credential", "access_key", "account_key", "private_key", "sas")
_NAMES = ("key", "pwd", "connection_string")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HINT = "use AWS_* environment variables or options = { profile = ... }"
_OPEN_BITS = stat.S_IRWXO | stat.S_IWGRP
FILE_VARIABLE, KEYS_VARIABLE = "TIERED_KEY_RING", "TIERED_KEYS"


def check_no_secret(url: str | None, options: Mapping[str, object], file: str | None) -> None:
    """Raise InvalidRequest for a secret in the url or the options, naming the option, never its value."""
    if url is not None and "@" in split_url(url).netloc and not url.startswith("hdfs://"):
        raise InvalidRequest(f"invalid configuration, the url contains credentials; {_HINT}", file=file)
    if is_loopback(options):
        return
    name = next((name for name, _ in _leaves(options) if _is_secret(name)), None)
    if name is not None:
        wrong = f"invalid configuration, an option looks like a secret; {_HINT}"
        raise InvalidRequest(wrong, option=name, section="remote", file=file)


def is_loopback(options: Mapping[str, object]) -> bool:
    """Whether the options send every request to this machine."""
    endpoints = [value for name, value in _leaves(options) if name in ("endpoint_url", "endpoint")]
    return bool(endpoints) and all(split_url(str(value)).hostname in _LOOPBACK for value in endpoints)


def without_secrets(options: Mapping[str, object]) -> dict[str, object]:
    """The options, also nested ones, without names that look like a secret's; values as text."""
    return {
        name: without_secrets(value) if isinstance(value, Mapping) else str(value)
        for name, value in options.items()
        if not _is_secret(name)
    }


def split_url(url: str) -> SplitResult:
    """The parts of a URL. Raises InvalidRequest, without showing it, for an invalid URL."""
    try:
        url.encode()
        return urlsplit(url)
    except ValueError:
        raise InvalidRequest("invalid url, expected scheme://host/path") from None


def _is_secret(name: str) -> bool:
    lower = name.lower()
    return lower in _NAMES or any(mark in lower for mark in _MARKS)


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, key)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, name)
    else:
        yield name, value


def load_key_ring(path: str | None, environ: Mapping[str, str]) -> KeyRing:
    """The ring of this process, empty if none is configured. No error shows a key.

    Raises NotFound, and InvalidRequest for an invalid file or one that other users may read.
    """
    if keys := environ.get(KEYS_VARIABLE):
        return parse_key_ring(keys.split(";"), KEYS_VARIABLE)
    path = environ.get(FILE_VARIABLE) or path
    return _read(path) if path else NO_KEYS


def keyed_store(store: ObjectStore, path: str | None) -> ObjectStore:
    return keyed(store, load_key_ring(path, os.environ))


def _check_private(path: str, mode: int) -> None:
    """Raise InvalidRequest if others have access or the group may write; secret mounts let groups read."""
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
