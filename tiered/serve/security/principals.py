"""Principals: the authenticated name of a client. Source: kafka `KafkaPrincipal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local.errors import InvalidRequest

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
LOCAL = Principal("local", "Process")  # the peer of a Unix socket: no name that a client can authenticate as


def parse_principal(text: str) -> Principal:
    """Parse ``User:alice``. Raises InvalidRequest for another kind or no name."""
    kind, colon, name = text.partition(":")
    if not colon or kind != "User" or not name:
        raise InvalidRequest("invalid principal", text=repr(text), expected="User:NAME, or User:* for all")
    return Principal(name)


def certificate_principal(certificate: Mapping[str, Any]) -> Principal:
    """The subject of a verified certificate, from `ssl.SSLObject.getpeercert`, as RFC 4514 writes it."""
    subject: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    parts = ("+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in each) for each in subject)
    name = ",".join(reversed(list(parts)))
    return Principal(name) if name else ANONYMOUS


def _escaped(value: str) -> str:
    """Source: RFC 4514, section 2.4."""
    escaped = "".join("\\" + each if each in '"+,;<>\\' else "\\00" if each == "\0" else each for each in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if len(escaped) > 1 and escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = escaped[:-1] + "\\ "
    return escaped
