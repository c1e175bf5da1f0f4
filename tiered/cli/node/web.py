"""``tiered web``: browser pages about a directory that another process may manage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tiered.cli.errors import Exit
from tiered.cli.options import GROUP, command, option
from tiered.cli.session import Session, now_ms

if TYPE_CHECKING:
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache
    from tiered.manager.manager import LogManager
    from tiered.web.http.gate import Gate
    from tiered.web.http.server import Pages
    from tiered.web.http.serving import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControl:
    """Access control and encryption of the pages: token and certificate files, and names of this server."""

    token_file: str | None = option(
        "--token-file FILE", "Require the token in this file, on loopback too.", type=click.Path()
    )
    hosts: tuple[str, ...] = option("--host NAME", "Accept a further host name; repeatable.")
    tls_cert: str | None = option("--tls-cert FILE", "Serve over TLS with this certificate (PEM).", type=click.Path())
    tls_key: str | None = option(
        "--tls-key FILE", "Name the file of the key; default: the file of the certificate.", type=click.Path()
    )

    @property
    def tls(self) -> Tls | None:
        """Return the TLS files. Raises UsageError for a key without a certificate."""
        from tiered.web.http.serving import Tls

        if self.tls_cert is not None:
            return Tls(certificate=self.tls_cert, key=self.tls_key)
        if self.tls_key is not None:
            raise click.UsageError("--tls-key is the key of a certificate: add --tls-cert")
        return None


@command("web", example="web --listen 127.0.0.1:8080")
def web(
    session: Session,
    listen: str = option("--listen [HOST]:PORT", "Set the address; without a host on loopback.", default=":8080"),
    access: AccessControl = GROUP,
) -> int:
    """Serve web pages: topics, segments, the plan, costs, compaction and problems.

    The pages are read-only: the server takes no lock and may run next to `tiered run`. An address other than loopback
    requires a token; without --token-file the command generates one and prints it.
    """
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache
    from tiered.cli.signals import stop_signals
    from tiered.config.clock_guard import counted_ms
    from tiered.web.pages.manager_cache import ManagerCache
    from tiered.web.pages.site import Site

    config = session.config()
    session.set_up_logging(reports_problems=True)
    known = ManifestMemoryCache(counted_ms)
    managers = ManagerCache(
        config, lambda: _read_only(session, known), now_ms, lambda: _read_only(session, is_alone=True)
    )
    try:
        with stop_signals() as stop, serving_pages(session, "--listen", listen, Site(managers, now_ms).answer, access):
            stop.wait(None)
    finally:
        managers.close()
    return Exit.DONE


@contextmanager
def serving_pages(session: Session, option: str, listen: str, pages: Pages, access: AccessControl) -> Iterator[None]:
    """Serve the pages at the address from `option` within the block.

    The address and a generated token are printed on stderr. Raises InvalidRequest for an unusable address and for a
    file without a token or a certificate, NotFound for a missing file.
    """
    from tiered.web.http.metrics_server import is_loopback, parse_address
    from tiered.web.http.server import WebServer

    host, port = parse_address(listen)
    gate, made = _gate(access, is_open=not is_loopback(host))
    server = WebServer(host, port, pages, gate, option=option, tls=access.tls)
    server.start()
    try:
        session.say(f"pages at {server.root} until Ctrl-C")
        if made is not None:
            click.echo(f"token: {made}", err=True)
        if gate.wants_token and access.tls is None and not is_loopback(host):
            session.say("the connection is not encrypted: use --tls-cert, or a proxy with TLS or a tunnel")
        yield
    finally:
        server.close()


def _read_only(session: Session, known: ManifestMemoryCache | None = None, *, is_alone: bool = False) -> LogManager:
    """A read-only open; `is_alone` reads only the disk."""
    from tiered.manager.manager import LogManager
    from tiered.web.pages.manager_cache import silent_store

    config = session.config()
    store = silent_store(config.remote_url) if is_alone and config.remote_url is not None else None
    return LogManager.open(config, now_ms=now_ms(), read_only=True, store=store, known=known)


def _gate(access: AccessControl, *, is_open: bool) -> tuple[Gate, str | None]:
    """Return the gate, and the token if one was generated.

    Raises NotFound and InvalidRequest for a file without a token.
    """
    import secrets

    from tiered.web.http.gate import Gate, own_names

    names = [*access.hosts, *(own_names() if is_open else ())]
    if access.token_file is not None:
        return Gate(token=_token_in(access.token_file), hosts=names), None
    made = secrets.token_urlsafe(24) if is_open else None
    return Gate(token=made, hosts=names), made


def _token_in(path: str) -> str:
    from tiered.config.user_files import read_given
    from tiered.web.http.gate import check_token

    token = read_given(path, "cannot read the token", "a file with one line of plain letters").strip()
    return check_token(token.decode(errors="replace"), file=path)
