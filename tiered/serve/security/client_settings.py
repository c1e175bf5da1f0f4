"""The file of `--groups-config`: how a client of a Kafka server protects its connection.

Properties with the names of Kafka's and librdkafka's clients, ``name=value`` a line; ``#`` begins a line that is a
comment. A value is taken as it stands, without escapes. Paths are relative to the file.

| security.protocol | TLS | SASL |
|---|---|---|
| PLAINTEXT, the default | | |
| SSL | yes | |
| SASL_PLAINTEXT | | yes |
| SASL_SSL | yes | yes |
"""

from __future__ import annotations

import os
import shlex
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from local.errors import InvalidRequest
from tiered.config.properties import nearest
from tiered.config.user_files import read_given
from tiered.serve.security.credentials import MECHANISMS
from tiered.serve.security.sasl import PLAIN

FILE_BYTES_MAX = 64 << 10
CLIENT_MECHANISMS = (PLAIN, *MECHANISMS)
_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
_USER, _PASSWORD = "sasl.username", "sasl.password"
_CA, _CERTIFICATE, _KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
KEYS = (_PROTOCOL, _MECHANISM, _USER, _PASSWORD, _CA, _CERTIFICATE, _KEY)
# Each protocol, and whether it has TLS and SASL.
_PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_OPEN_BITS = stat.S_IRWXO | stat.S_IWGRP  # secret mounts let groups read
_ATTEMPT = "cannot use the file of --groups-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """`context` None: without TLS; `mechanism` None: without authentication."""

    context: ssl.SSLContext | None = None
    mechanism: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)


def read_client_settings(path: str) -> ClientSettings:
    """Raises NotFound, AccessDenied, and InvalidRequest with the key. No error has a value of the file's secrets."""
    body = read_given(path, "cannot read the file of --groups-config", "name a properties file")
    mode = os.stat(path).st_mode
    if mode & _OPEN_BITS:
        wrong = f"{_ATTEMPT}, other users may read or change it: run chmod 600 {shlex.quote(path)}"
        raise InvalidRequest(wrong, file=path, mode=f"{stat.S_IMODE(mode):04o}", allowed="0600 or 0640")
    if len(body) > FILE_BYTES_MAX:
        raise InvalidRequest(f"{_ATTEMPT}, it is too large", file=path, limit_bytes=FILE_BYTES_MAX)
    try:
        return _settings(_values(body), os.path.dirname(os.path.abspath(path)))
    except InvalidRequest as error:
        raise error.restated(error.attempt, file=path, **error.facts) from None


def _values(body: bytes) -> dict[str, str]:
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{_ATTEMPT}, it is not UTF-8") from None
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        if not equals:
            raise InvalidRequest(f"{_ATTEMPT}, a line is not NAME=VALUE", line=number)
        if key not in KEYS:
            facts = {"line": number, "near": nearest(key, KEYS), "allowed": " ".join(KEYS)}
            raise InvalidRequest(f"{_ATTEMPT}, it has an unknown key", key=repr(key), **facts)
        if key in values:
            raise InvalidRequest(f"{_ATTEMPT}, a key is there twice", key=key, line=number)
        values[key] = value
    return {key: value for key, value in values.items() if value}


def _settings(values: Mapping[str, str], root: str) -> ClientSettings:
    protocol = _one_of(_PROTOCOL, values.get(_PROTOCOL, "PLAINTEXT"), tuple(_PROTOCOLS))
    has_tls, has_sasl = _PROTOCOLS[protocol]
    for key in values:
        is_used = has_tls if key.startswith("ssl.") else has_sasl if key.startswith("sasl.") else True
        if not is_used:
            wanted = " or ".join(name for name, used in _PROTOCOLS.items() if used[0 if key.startswith("ssl.") else 1])
            raise InvalidRequest(f"{_ATTEMPT}, {_PROTOCOL} {protocol} does not use a key", key=key, used_by=wanted)
    for key in (_MECHANISM, _USER, _PASSWORD) if has_sasl else ():
        if key not in values:
            raise InvalidRequest(f"{_ATTEMPT}, a key is missing", key=key, needed_by=protocol)
    mechanism = _one_of(_MECHANISM, values[_MECHANISM], CLIENT_MECHANISMS) if has_sasl else None
    if "\0" in values.get(_USER, "") + values.get(_PASSWORD, ""):
        raise InvalidRequest(f"{_ATTEMPT}, a user and a password have no NUL")
    return ClientSettings(
        context=_context(values, root) if has_tls else None,
        mechanism=mechanism,
        user=values.get(_USER, ""),
        password=values.get(_PASSWORD, ""),
    )


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    found = value.upper()
    if found not in allowed:
        raise InvalidRequest(f"{_ATTEMPT}, a value is invalid", key=key, value=repr(value), allowed=" ".join(allowed))
    return found


def _context(values: Mapping[str, str], root: str) -> ssl.SSLContext:
    """TLS 1.2 or newer, which checks the certificate and the name of the server."""
    files = {key: os.path.join(root, values[key]) for key in (_CA, _CERTIFICATE, _KEY) if key in values}
    if _KEY in files and _CERTIFICATE not in files:
        raise InvalidRequest(f"{_ATTEMPT}, a key is missing", key=_CERTIFICATE, needed_by=_KEY)
    at = _CA
    try:
        context = ssl.create_default_context(cafile=files.get(_CA))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        at = _CERTIFICATE
        if _CERTIFICATE in files:
            context.load_cert_chain(files[_CERTIFICATE], files.get(_KEY), password=_no_password)
    except (OSError, ValueError, TypeError) as error:  # ssl.SSLError too
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        cause = str(why).replace("_", " ").lower()
        raise InvalidRequest(f"{_ATTEMPT}, a PEM file is unusable", key=at, pem=files.get(at), cause=cause) from None
    return context


def _no_password() -> bytes:
    raise ValueError("the key is encrypted: leave out its password")
