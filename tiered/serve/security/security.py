"""The security of one Kafka endpoint: the file's settings in force, and the state that outlives them.

The file and all files that it names are read again when one of them changes, at most RELOAD_S later, or on `reload`.

| after a change | effect |
|---|---|
| all files are valid | ACLs, quotas and limits at once, certificates and mechanisms for new connections and exchanges |
| one is not valid | the old settings stay in force; the cause is logged once for each change |
| TLS, authentication or the ACLs are missing | as if it were not valid: that needs a restart |
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from local.errors import InvalidRequest, LogError
from tiered.serve.messages.base import Api
from tiered.serve.security.acl import Kind, Operation
from tiered.serve.security.admission import Admission, Tally
from tiered.serve.security.credentials import Credentials, read_credentials
from tiered.serve.security.oauth import TokenVerifier, read_keys
from tiered.serve.security.principals import LOCAL, Principal, certificate_principal
from tiered.serve.security.quotas import MUTE_S_MAX, Quotas, Rate
from tiered.serve.security.sasl import OAUTHBEARER, PLAIN, Exchange, OauthExchange, Offload, PlainExchange, ScramSteps
from tiered.serve.security.scram import ScramExchange
from tiered.serve.security.session import Session, State
from tiered.serve.security.settings import Settings, read_settings

RELOAD_S = 5.0
_OTHERS = 0o077  # permissions of group and others
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    settings: Settings
    context: ssl.SSLContext | None
    credentials: Credentials
    verifier: TokenVerifier | None


class Security:
    """Thread safe in `reload` and `refresh`; all other verbs belong to one event loop.

    `clock` returns seconds that never fall, `wall_clock` seconds since the epoch.
    """

    def __init__(self, path: str, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        """Read all files. Raises NotFound, AccessDenied, InvalidRequest."""
        self._path, self._clock, self._wall_clock = path, clock, wall_clock
        self.quotas, self.admission = Quotas(clock), Admission(clock)
        self.tally = Tally()
        self._denials = Tally()
        self._lock = threading.Lock()
        self._files = _stats((path,))
        settings = read_settings(path)
        self._files |= _stats(settings.files)
        self._loaded = _load(settings)
        self._apply(self._loaded)
        self._is_closed = False
        self._wakes = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tiered-security", daemon=True)

    @property
    def settings(self) -> Settings:
        return self._loaded.settings

    @property
    def is_protected(self) -> bool:
        """Whether connections are encrypted and clients authenticated, as other machines require."""
        return self.settings.tls is not None and self.settings.authenticates

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the TLS of a new connection; None: no TLS."""
        return self._loaded.context

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return self.settings.mechanisms

    def start(self) -> None:
        """Watch the files until `close`."""
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._wakes.set()
        if self._thread.ident is not None:
            self._thread.join()

    def reload(self) -> None:
        """Read all files again, soon and in another thread."""
        self._seen_again()
        self._wakes.set()

    def refresh(self) -> None:
        """Read all files again if one changed."""
        with self._lock:
            files = _stats(self._files)
            if files == self._files:
                return
            try:
                settings = read_settings(self._path)
                files |= _stats(set(settings.files) - files.keys())
                loaded = _load(settings)
                _check_not_weaker(self.settings, settings)
            except LogError as error:
                _log.error("the changed security settings are not applied, the old ones stay in force: %s", error)
            else:
                self._apply(loaded)
                files = {name: each for name, each in files.items() if name in settings.files}
                _log.info("changed security settings applied: file=%s", self._path)
            self._files = files

    def session(self, address: str, certificate: Mapping[str, Any] | None = None, *, is_local: bool = False) -> Session:
        """The session of a new connection; `is_local` for the peer of a Unix socket, whose rights its mode decides."""
        if is_local:
            return Session(None, self._clock, address, principal=LOCAL)
        if self.mechanisms:
            return Session(self, self._clock, address, state=State.HANDSHAKE)
        return Session(None, self._clock, address, principal=certificate_principal(certificate or {}))

    def exchange(self, mechanism: str, offload: Offload[bool]) -> Exchange:
        loaded = self._loaded
        match mechanism:
            case _ if mechanism == PLAIN:
                return PlainExchange(loaded.credentials, offload)
            case _ if mechanism == OAUTHBEARER:
                assert loaded.verifier is not None, "the settings name its keys"
                return OauthExchange(loaded.verifier, self._wall_clock)
        return ScramSteps(ScramExchange(loaded.credentials, mechanism))

    def lifetime_s(self, expires_s: float | None) -> float | None:
        limits = [] if expires_s is None else [expires_s - self._wall_clock()]
        if self.settings.session_s_max is not None:
            limits.append(self.settings.session_s_max)
        return max(0.0, min(limits)) if limits else None

    def failed(self, address: str, mechanism: str, cause: str) -> float:
        text = "authentication failed: address=%s mechanism=%s cause=%s"
        self.tally.warn(_log, ("authentication", address), text, address, mechanism, cause)
        return self.admission.failure_delay_s(address)

    def may(
        self, principal: Principal, address: str, operation: Operation, kind: Kind, name: str, *, logs: bool = True
    ) -> bool:
        acl = self.settings.acl
        if acl is None or acl.may(principal, address, operation, kind, name):
            return True
        if logs:
            self._deny(principal, address, operation, kind, repr(name))
        return False

    def may_some(self, principal: Principal, address: str, operation: Operation, kind: Kind) -> bool:
        acl = self.settings.acl
        if acl is None or acl.may_some(principal, address, operation, kind):
            return True
        self._deny(principal, address, operation, kind, "any")
        return False

    def charge(self, principal: Principal, api: int, request_bytes: int, response_bytes: int) -> float:
        """Record a request and its response against the quotas; the seconds that the client has to pause."""
        debts_s = [self.quotas.record(principal, Rate.REQUESTS, 1)]
        if api == Api.PRODUCE:
            debts_s.append(self.quotas.record(principal, Rate.PRODUCE, request_bytes))
        elif api == Api.FETCH:
            debts_s.append(self.quotas.record(principal, Rate.FETCH, response_bytes))
        return min(max(debts_s), MUTE_S_MAX)

    def _deny(self, principal: Principal, address: str, operation: Operation, kind: Kind, name: str) -> None:
        text = "access denied: principal=%r address=%s operation=%s resource=%s name=%s"
        facts = (str(principal), address, operation.name, kind.value, name)
        self._denials.warn(_log, (principal, operation, kind), text, *facts)

    def _apply(self, loaded: _Loaded) -> None:
        self.quotas.replace(loaded.settings.rates)
        self.admission.limits = loaded.settings.limits
        self._loaded = loaded

    def _seen_again(self) -> None:
        with self._lock:
            self._files = dict.fromkeys(self._files)

    def _watch(self) -> None:
        while not self._is_closed:
            self._wakes.wait(RELOAD_S)
            self._wakes.clear()
            if not self._is_closed:
                self.refresh()


def _load(settings: Settings) -> _Loaded:
    if settings.credentials is not None:
        _warn_of_readers(settings.credentials)
    return _Loaded(
        settings=settings,
        context=settings.tls.context() if settings.tls is not None else None,
        credentials=read_credentials(settings.credentials) if settings.credentials is not None else Credentials(),
        verifier=(TokenVerifier(read_keys(settings.jwks), settings.token_rules) if settings.jwks is not None else None),
    )


def _warn_of_readers(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # reading it reports the cause
    if mode & _OTHERS:
        _log.warning("other users may access the credentials: file=%s mode=%03o expected=600", path, mode & 0o777)


def _check_not_weaker(old: Settings, new: Settings) -> None:
    for name, was_there, is_there in (
        ("TLS", old.tls is not None, new.tls is not None),
        ("authentication", old.authenticates, new.authenticates),
        ("ACLs", old.acl is not None, new.acl is not None),
    ):
        if was_there and not is_there:
            raise InvalidRequest("the changed file lacks a protection, remove it by a restart", missing=name)


def _stats(files: Collection[str]) -> dict[str, tuple[int, int, int] | None]:
    """What changes with a file's content; None for a file that cannot be read."""
    found: dict[str, tuple[int, int, int] | None] = {}
    for each in files:
        try:
            stat = os.stat(each)
            found[each] = stat.st_mtime_ns, stat.st_size, stat.st_ino
        except OSError:
            found[each] = None
    return found
