"""The file of `--security`, in TOML: names of Kafka's broker where it has them. Paths are relative to the file.

An unknown key or a value of another type is an error with the key's name. `KEYS` lists the keys.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local.errors import InvalidRequest
from tiered.config.properties import nearest
from tiered.config.units import parse_bytes, parse_duration
from tiered.config.user_files import read_given
from tiered.serve.security.acl import ANY_NAME, CLUSTER_NAME, OPERATIONS, Acl, AclEntry, Kind, Operation
from tiered.serve.security.admission import ConnectionLimits
from tiered.serve.security.oauth import TokenRules
from tiered.serve.security.principals import Principal, parse_principal
from tiered.serve.security.quotas import Rate
from tiered.serve.security.sasl import NAMES, OAUTHBEARER
from tiered.serve.security.tls import ClientAuth, Tls

FILE_BYTES_MAX = 4 << 20
RULES_MAX = 10_000
_CERTIFICATE, _KEY = "ssl.certificate.file", "ssl.key.file"
_CLIENT_AUTH, _CLIENT_CA = "ssl.client.auth", "ssl.client.ca.file"
_MECHANISMS, _CREDENTIALS, _JWKS = "sasl.enabled.mechanisms", "sasl.credentials.file", "sasl.oauthbearer.jwks.file"
_SUPER_USERS, _OPEN = "super.users", "allow.everyone.if.no.acl.found"
_RATES = tuple(each.value for each in Rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`acl` None: every authenticated client may do everything. Times in seconds."""

    path: str
    tls: Tls | None
    mechanisms: tuple[str, ...]
    credentials: str | None
    jwks: str | None
    token_rules: TokenRules
    session_s_max: float | None
    authentication_s: float
    acl: Acl | None
    rates: Mapping[tuple[Principal | None, Rate], float]
    limits: ConnectionLimits

    @property
    def files(self) -> tuple[str, ...]:
        """All files that the settings consist of."""
        tls = self.tls
        named = (tls.certificate, tls.key, tls.client_ca) if tls is not None else ()
        return tuple(each for each in (self.path, *named, self.credentials, self.jwks) if each is not None)

    @property
    def authenticates(self) -> bool:
        """Whether every client proves its name."""
        return bool(self.mechanisms) or (self.tls is not None and self.tls.client_auth is ClientAuth.REQUIRED)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) and each for each in values):
        raise ValueError("a text or a list of texts")
    return tuple(values)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise ValueError("a whole number, 1 or more")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1 << 53:
        raise ValueError("a number above 0")
    return float(value)


def _seconds(value: object) -> float:
    """A number of seconds, or a duration with its unit."""
    found = parse_duration(value) if isinstance(value, str) else None
    if found is not None and found >= 0:
        return found / 1000
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 31:
        return float(value)
    raise ValueError("a duration such as 30s")


def _milliseconds(value: object) -> float:
    """As `_seconds`, but a bare number is ms: the name of the key ends in ``.ms``."""
    return _seconds(value) if isinstance(value, str) else _seconds(value) / 1000


def _byte_rate(value: object) -> float:
    found = parse_bytes(value) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 53:
        raise ValueError("bytes per second such as 10MiB")
    return float(found)


def _mechanisms(value: object) -> tuple[str, ...]:
    found = _texts(value)
    if not set(found) <= set(NAMES) or len(set(found)) < len(found):
        raise ValueError(" ".join(NAMES))
    return found


def _client_auth(value: object) -> ClientAuth:
    try:
        return ClientAuth(_text(value))
    except ValueError:
        raise ValueError(" ".join(ClientAuth)) from None


def _principals(value: object) -> tuple[Principal, ...]:
    return tuple(parse_principal(each) for each in _texts(value)) if value != [] else ()


KEYS: Mapping[str, Callable[[object], Any]] = {
    _CERTIFICATE: _text,
    _KEY: _text,
    _CLIENT_AUTH: _client_auth,
    _CLIENT_CA: _text,
    _MECHANISMS: _mechanisms,
    _CREDENTIALS: _text,
    _JWKS: _text,
    "sasl.oauthbearer.expected.issuer": _text,
    "sasl.oauthbearer.expected.audience": _texts,
    "sasl.oauthbearer.clock.skew.seconds": _seconds,
    "sasl.oauthbearer.sub.claim.name": _text,
    "connections.max.reauth.ms": _milliseconds,
    "connection.failed.authentication.delay.ms": _milliseconds,
    "authentication.timeout.ms": _milliseconds,
    "max.connections": _count,
    "max.connections.per.ip": _count,
    "max.connection.creation.rate": _number,
    "max.connection.creation.rate.per.ip": _number,
    _SUPER_USERS: _principals,
    _OPEN: _flag,
}
_ATTEMPT = "cannot use the security file"


def read_settings(path: str) -> Settings:
    """Raises NotFound, AccessDenied, and InvalidRequest with the key for what the file may not have."""
    body = read_given(path, "cannot read the security file", "name a TOML file", name="file")
    try:
        if len(body) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        parsed = tomllib.loads(body.decode())
    except (ValueError, RecursionError) as error:
        # A parser names places, not values, except in the text of the error's first line.
        raise InvalidRequest("cannot read the security file, it is not TOML", file=path, cause=_place(error)) from None
    rules, quotas = parsed.pop("acl", None), parsed.pop("quota", [])
    try:
        values = _values(parsed)
        acl = _acl(rules, values)
        rates = _rates(quotas)
    except InvalidRequest as error:
        raise error.restated(error.attempt, file=path, **error.facts) from None
    return _settings(path, values, acl, rates)


def _place(error: Exception) -> str:
    text = str(error)
    return text[text.rindex("(") :].strip("()") if "(at line" in text else type(error).__name__


def _values(parsed: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for key, value in _flattened(parsed, ""):
        if key not in KEYS:
            near = nearest(key, dict.fromkeys((*KEYS, "acl", "quota"), ""))
            raise InvalidRequest(f"{_ATTEMPT}, it has an unknown key", key=key, near=near)
        values[key] = _checked(key, KEYS[key], value)
    return values


def _flattened(table: Mapping[str, Any], prefix: str) -> Sequence[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in table.items():
        found += _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found


def _checked(key: str, parse: Callable[[object], Any], value: object) -> Any:  # noqa: ANN401 - of any type
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidRequest(f"{_ATTEMPT}, a value is invalid", key=key, expected=str(error)) from None


def _settings(
    path: str, values: Mapping[str, Any], acl: Acl | None, rates: Mapping[tuple[Principal | None, Rate], float]
) -> Settings:
    root = os.path.dirname(os.path.abspath(path))
    files = {
        name: os.path.join(root, values[name])
        for name in (_CERTIFICATE, _KEY, _CLIENT_CA, _CREDENTIALS, _JWKS)
        if name in values
    }
    mechanisms, client_auth = values.get(_MECHANISMS, ()), values.get(_CLIENT_AUTH, ClientAuth.NONE)
    by_password = [each for each in mechanisms if each != OAUTHBEARER]
    for is_wrong, needed, key in (
        (
            _CERTIFICATE not in files and (_KEY in files or _CLIENT_AUTH in values or _CLIENT_CA in files),
            _CERTIFICATE,
            "ssl.*",
        ),
        (client_auth is not ClientAuth.NONE and _CLIENT_CA not in files, _CLIENT_CA, _CLIENT_AUTH),
        (bool(by_password) and _CREDENTIALS not in files, _CREDENTIALS, _MECHANISMS),
        (OAUTHBEARER in mechanisms and _JWKS not in files, _JWKS, _MECHANISMS),
    ):
        if is_wrong:
            raise InvalidRequest(f"{_ATTEMPT}, a key is missing", file=path, key=needed, needed_by=key)
    tls = None
    if _CERTIFICATE in files:
        tls = Tls(
            certificate=files[_CERTIFICATE],
            key=files.get(_KEY),
            client_auth=client_auth,
            client_ca=files.get(_CLIENT_CA),
        )
    reauth_s = values.get("connections.max.reauth.ms", 0.0)
    return Settings(
        path=path,
        tls=tls,
        mechanisms=mechanisms,
        credentials=files.get(_CREDENTIALS) if by_password else None,
        jwks=files.get(_JWKS) if OAUTHBEARER in mechanisms else None,
        token_rules=TokenRules(
            issuer=values.get("sasl.oauthbearer.expected.issuer"),
            audiences=values.get("sasl.oauthbearer.expected.audience", ()),
            clock_skew_s=values.get("sasl.oauthbearer.clock.skew.seconds", 30.0),
            principal_claim=values.get("sasl.oauthbearer.sub.claim.name", "sub"),
        ),
        session_s_max=reauth_s or None,
        authentication_s=values.get("authentication.timeout.ms", 30.0),
        acl=acl,
        rates=rates,
        limits=ConnectionLimits(
            connections_max=values.get("max.connections"),
            per_address_max=values.get("max.connections.per.ip"),
            rate=values.get("max.connection.creation.rate"),
            rate_per_address=values.get("max.connection.creation.rate.per.ip"),
            failure_delay_s=values.get("connection.failed.authentication.delay.ms", 0.1),
        ),
    )


def _acl(rules: object, values: Mapping[str, Any]) -> Acl | None:
    """None without rules, super users and a default: nothing asks for authorization."""
    if rules is None and not {_SUPER_USERS, _OPEN} & values.keys():
        return None
    tables = _tables("acl", rules if rules is not None else [])
    parsed = [rule for table in tables for rule in _rules(table)]
    if len(parsed) > RULES_MAX:
        raise InvalidRequest(f"{_ATTEMPT}, it has too many rules", rules=len(parsed), limit=RULES_MAX)
    return Acl(parsed, super_users=values.get(_SUPER_USERS, ()), is_open_by_default=values.get(_OPEN, False))


_OPERATION_NAMES = {each.name.replace("_", "").lower(): each for each in Operation}
_PERMISSIONS = {"allow": True, "deny": False}
_RESOURCES = {
    f"{kind.value}{suffix}": (kind, bool(suffix))
    for kind in Kind
    for suffix in ("", "_prefix")
    if kind is not Kind.CLUSTER
}


def _rules(table: Mapping[str, Any]) -> list[AclEntry]:
    known = {"principal", "permission", "operations", "host", "cluster", *_RESOURCES}
    _check_keys("acl", table, known)
    principals = [_principal(each) for each in _checked("acl.principal", _texts, table.get("principal"))]
    permission = table.get("permission", "allow")
    if permission not in _PERMISSIONS:
        raise InvalidRequest(f"{_ATTEMPT}, a value is invalid", key="acl.permission", expected="allow deny")
    operations = frozenset(_operation(each) for each in _checked("acl.operations", _texts, table.get("operations")))
    hosts = _checked("acl.host", _texts, table.get("host", ANY_NAME))
    resources: list[tuple[Kind, str, bool]] = [
        (kind, name, is_prefix)
        for key, (kind, is_prefix) in _RESOURCES.items()
        if key in table
        for name in _checked(f"acl.{key}", _texts, table[key])
    ]
    if table.get("cluster", False) and _checked("acl.cluster", _flag, table["cluster"]):
        resources.append((Kind.CLUSTER, CLUSTER_NAME, False))
    if not resources:
        raise InvalidRequest(f"{_ATTEMPT}, a rule names no resource", expected=" ".join(("cluster", *_RESOURCES)))
    for kind, _, _ in resources:
        if not operations <= OPERATIONS[kind]:
            allowed = " ".join(sorted(each.name.lower() for each in OPERATIONS[kind]))
            raise InvalidRequest(
                f"{_ATTEMPT}, a rule has an operation of another resource", resource=kind.value, allowed=allowed
            )
    return [
        AclEntry(
            principal=principal,
            kind=kind,
            name=name,
            is_prefix=is_prefix,
            operations=operations,
            is_allowed=_PERMISSIONS[permission],
            host=host,
        )
        for principal in principals
        for kind, name, is_prefix in resources
        for host in hosts
    ]


def _principal(text: str) -> Principal | None:
    found = parse_principal(text)
    return None if found.name == ANY_NAME else found


def _operation(text: str) -> Operation:
    found = _OPERATION_NAMES.get(text.replace("_", "").lower())
    if found is None:
        raise InvalidRequest(
            f"{_ATTEMPT}, an operation is unknown",
            operation=repr(text),
            allowed=" ".join(each.name.lower() for each in Operation),
        )
    return found


def _rates(quotas: object) -> Mapping[tuple[Principal | None, Rate], float]:
    found: dict[tuple[Principal | None, Rate], float] = {}
    for table in _tables("quota", quotas):
        _check_keys("quota", table, {"principal", *_RATES})
        for text in _checked("quota.principal", _texts, table.get("principal")):
            for rate in Rate:
                if rate.value in table:
                    parse = _number if rate is Rate.REQUESTS else _byte_rate
                    found[_principal(text), rate] = _checked(f"quota.{rate.value}", parse, table[rate.value])
    return found


def _tables(key: str, found: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidRequest(f"{_ATTEMPT}, a value is invalid", key=key, expected=f"tables [[{key}]]")
    return found


def _check_keys(name: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            near = nearest(key, dict.fromkeys(known, ""))
            raise InvalidRequest(f"{_ATTEMPT}, it has an unknown key", key=f"{name}.{key}", near=near)
