"""``tiered web``: pages about a directory for a browser, without being the manager at work."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tiered.cli.errors import Exit
from tiered.cli.session import Session, now_ms

if TYPE_CHECKING:
    from tiered.manager import LogManager
    from tiered.web.gate import Gate
    from tiered.web.server import Pages


def gate_options(command: Callable[..., object]) -> Callable[..., object]:
    """``--token-file`` and ``--host``: who may see pages that are served."""
    for option in (
        click.option(
            "--host", "hosts", multiple=True, metavar="NAME", help="A further name that leads here; may be repeated."
        ),
        click.option(
            "--token-file", metavar="FILE", type=click.Path(), help="Ask for the token in this file, on loopback too."
        ),
    ):
        command = option(command)
    return command


@click.command("web")
@click.option(
    "--listen", default=":8080", metavar="[HOST]:PORT", show_default=True, help="Where; without a host on loopback."
)
@gate_options
@click.pass_obj
def web(session: Session, listen: str, token_file: str | None, hosts: tuple[str, ...]) -> int:
    """Pages for a browser: topics, segments, the plan, what it costs and would cost, compaction, what is stuck.

    Read-only: it takes no lock, runs beside a manager at work, and no address of it changes anything. Elsewhere than on
    loopback it wants a token; without --token-file it makes one and prints it.
    """
    from tiered.cli.signals import stop_signals
    from tiered.web.looks import Looks
    from tiered.web.site import Site

    config = session.config()
    session.set_up_logging(tells_problems=True)
    looks = Looks(config, lambda: _look(session), now_ms, lambda: _look(session, is_alone=True))
    try:
        with stop_signals() as stop, serving_pages(session, listen, Site(looks, now_ms).answer, token_file, hosts):
            stop.wait(None)
    finally:
        looks.close()
    return Exit.DONE


@contextmanager
def serving_pages(
    session: Session, listen: str, pages: Pages, token_file: str | None = None, hosts: tuple[str, ...] = ()
) -> Iterator[None]:
    """The pages, there, while this lasts; where they are and a token that was made are told on stderr.

    Raises InvalidRequest for an address that cannot be had and for a file without a token, NotFound for no file.
    """
    from tiered.metrics_server import is_loopback, parse_address
    from tiered.web.server import WebServer

    host, port = parse_address(listen)
    gate, made = _gate(token_file, hosts, is_open=not is_loopback(host))
    server = WebServer(host, port, pages, gate)
    server.start()
    try:
        at, port = server.address
        session.say(f"pages at http://{f'[{at}]' if ':' in at else at}:{port}/ until Ctrl-C")
        if made is not None:
            click.echo(f"token: {made}", err=True)
        if gate.wants_token and not is_loopback(host):
            session.say("nothing is encrypted on the way: put a proxy with TLS or a tunnel in front")
        yield
    finally:
        server.close()


def _look(session: Session, *, is_alone: bool = False) -> LogManager:
    """A manager that only looks, `is_alone` at the disk."""
    from tiered.manager import LogManager
    from tiered.web.silent_store import silent_store

    config = session.config()
    store = silent_store(config.remote_url) if is_alone and config.remote_url is not None else None
    return LogManager.open(config, now_ms=now_ms(), read_only=True, store=store)


def _gate(path: str | None, hosts: tuple[str, ...], *, is_open: bool) -> tuple[Gate, str | None]:
    """And the token where one was made. Raises NotFound and InvalidRequest for a file without one."""
    import secrets

    from tiered.web.gate import Gate

    names = [*hosts, *([socket.gethostname(), socket.getfqdn()] if is_open else [])]
    if path is not None:
        return Gate(token=_token_in(path), hosts=names), None
    made = secrets.token_urlsafe(24) if is_open else None
    return Gate(token=made, hosts=names), made


def _token_in(path: str) -> str:
    from tiered.given_files import read_given
    from tiered.web.gate import check_token

    token = read_given(path, "reading the token", "a file with one line of plain letters").strip()
    return check_token(token.decode(errors="replace"), file=path)
