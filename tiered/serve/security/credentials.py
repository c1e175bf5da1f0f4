"""Passwords of users, stored as SCRAM credentials: salted and iterated, never as text.

PLAIN checks a password against the same credentials. An unknown user gets made-up credentials: their salt is derived
from the user's name and the file's own secret, so that it is the same each time, and the exchange takes the same steps.

The file is JSON::

    {"version": 1, "secret": "...", "users": {"alice": {"SCRAM-SHA-256": {"salt": "...", "iterations": 4096, ...}}}}

Source of the derivation: RFC 5802, section 3; of the mechanisms and their bounds: kafka `ScramMechanism`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from local.errors import InvalidRequest
from tiered.config.user_files import read_given, write_given

MECHANISMS: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS, ITERATIONS_MIN, ITERATIONS_MAX = 8192, 4096, 16384
SALT_BYTES = 32
USERS_MAX = 100_000
NAME_BYTES_MAX = PASSWORD_BYTES_MAX = 1024
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credential:
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class Credentials:
    """The credentials of each user by mechanism."""

    users: Mapping[str, Mapping[str, Credential]] = field(default_factory=dict)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SALT_BYTES))

    def find(self, user: str, mechanism: str) -> tuple[Credential, bool]:
        """The user's credential, and True; or a made-up one that no password fits, and False."""
        found = self.users.get(user, {}).get(mechanism)
        made_up = self._made_up(user, mechanism)  # in every case: an unknown user takes the same time
        return (found, True) if found is not None else (made_up, False)

    def check_password(self, user: str, password: str) -> bool:
        """Whether this is the user's password. Takes the time of one derivation in every case."""
        known = self.users.get(user, {})
        mechanism = next((each for each in MECHANISMS if each in known), next(iter(MECHANISMS)))
        credential, is_known = self.find(user, mechanism)
        given = derive(password, MECHANISMS[mechanism], credential.salt, credential.iterations)
        return hmac.compare_digest(given.stored_key, credential.stored_key) and is_known

    def with_user(
        self, user: str, password: str, *, iterations: int = ITERATIONS, mechanisms: Mapping[str, str] = MECHANISMS
    ) -> Credentials:
        """A copy in which the user has this password only. Raises InvalidRequest for an unusable name or password."""
        _check_name(user)
        if not password or "\0" in password or len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
            wrong = "cannot use the password, it is empty, has a NUL or more than 1024 bytes"
            raise InvalidRequest(wrong, user=repr(user))
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            allowed = f"{ITERATIONS_MIN}..{ITERATIONS_MAX}"
            raise InvalidRequest("invalid number of iterations", iterations=iterations, allowed=allowed)
        made = {
            name: derive(password, digest, secrets.token_bytes(SALT_BYTES), iterations)
            for name, digest in mechanisms.items()
        }
        if len(self.users) >= USERS_MAX and user not in self.users:
            raise InvalidRequest("cannot add a user, the file has too many", limit=USERS_MAX)
        return Credentials(users={**self.users, user: made}, secret=self.secret)

    def without_user(self, user: str) -> Credentials:
        """A copy without the user. Raises InvalidRequest if it has none of that name."""
        if user not in self.users:
            raise InvalidRequest("cannot delete the user, the file has no such user", user=repr(user))
        return Credentials(users={name: each for name, each in self.users.items() if name != user}, secret=self.secret)

    @cached_property
    def _usual_iterations(self) -> Mapping[str, int]:
        numbers = {
            name: Counter(each[name].iterations for each in self.users.values() if name in each) for name in MECHANISMS
        }
        return {name: each.most_common(1)[0][0] for name, each in numbers.items() if each}

    def _made_up(self, user: str, mechanism: str) -> Credential:
        digest = MECHANISMS[mechanism]
        seed = hmac.digest(self.secret, f"{mechanism} {user}".encode(errors="replace"), "sha512")
        size = hashlib.new(digest).digest_size
        return Credential(
            salt=seed[:SALT_BYTES],
            iterations=self._usual_iterations.get(mechanism, ITERATIONS),
            stored_key=hmac.digest(seed, b"stored", digest)[:size],
            server_key=hmac.digest(seed, b"server", digest)[:size],
        )


def derive(password: str, digest: str, salt: bytes, iterations: int) -> Credential:
    """Source: RFC 5802, section 3. Kafka and its clients do not prepare the text (no SASLprep)."""
    salted = hashlib.pbkdf2_hmac(digest, password.encode(errors="surrogatepass"), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return Credential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", digest),
    )


def read_credentials(path: str) -> Credentials:
    """Raises NotFound, AccessDenied, and InvalidRequest for another format; no error has a part of a credential."""
    body = read_given(path, "cannot read the credentials", "create it with 'tiered credentials FILE USER'")
    try:
        parsed = json.loads(body)
        if parsed["version"] != _VERSION or len(parsed["users"]) > USERS_MAX:
            raise ValueError
        users = {str(user): _parsed_user(found) for user, found in parsed["users"].items()}
        return Credentials(users=users, secret=_bytes(parsed["secret"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequest("cannot read the credentials, the file has another format", file=path) from None


def write_credentials(path: str, credentials: Credentials) -> None:
    """Replace the file as a whole, with mode 0600. Raises as `tiered.config.user_files.write_given`."""
    body = {
        "version": _VERSION,
        "secret": _text(credentials.secret),
        "users": {
            user: {
                mechanism: {
                    "salt": _text(each.salt),
                    "iterations": each.iterations,
                    "stored_key": _text(each.stored_key),
                    "server_key": _text(each.server_key),
                }
                for mechanism, each in found.items()
            }
            for user, found in credentials.users.items()
        },
    }
    before = os.umask(0o077)
    try:
        write_given(path, json.dumps(body, indent=1).encode(), "cannot write the credentials")
    finally:
        os.umask(before)


def _check_name(user: str) -> None:
    if not user or not user.isprintable() or len(user.encode(errors="replace")) > NAME_BYTES_MAX:
        raise InvalidRequest("invalid user name", user=repr(user), expected="1 to 1024 bytes of printable text")


def _parsed_user(found: Mapping[str, Any]) -> Mapping[str, Credential]:
    return {
        mechanism: _parsed(found[mechanism], digest)
        for mechanism, digest in MECHANISMS.items()
        if mechanism in found.keys()  # noqa: SIM118 - an error for a list
    }


def _parsed(found: Mapping[str, Any], digest: str) -> Credential:
    size, iterations = hashlib.new(digest).digest_size, found["iterations"]
    stored_key, server_key = _bytes(found["stored_key"]), _bytes(found["server_key"])
    is_valid = isinstance(iterations, int) and ITERATIONS_MIN <= iterations <= ITERATIONS_MAX
    if not is_valid or len(stored_key) != size or len(server_key) != size:
        raise ValueError
    return Credential(salt=_bytes(found["salt"]), iterations=iterations, stored_key=stored_key, server_key=server_key)


def _bytes(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None
    if len(data) < 8:
        raise ValueError
    return data


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
