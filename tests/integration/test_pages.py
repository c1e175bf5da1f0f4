"""Every how-to page and runbook is run: its commands run in order and end as the page says."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_server import Commands
from documented_pages import ELSEWHERE, HOW_TO, NOT_RUN_COUNT, RUNBOOKS
from page_runner import ROOT, Page, Reader, blocks_of, lines_of

from tiered.demo.s3_endpoint import S3Endpoint

DOCS = ROOT / "docs"
PAGES = {DOCS / "how-to" / f"{name}.md": page for name, page in HOW_TO.items()}
PAGES |= {DOCS / "runbooks" / f"{name}.md": page for name, page in RUNBOOKS.items()}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.server
@pytest.mark.deep("the commands of every page of how-to and runbooks")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_page_runs_to_its_end(
    path: Path, tmp_path: Path, commands: Commands, port: int, request: pytest.FixtureRequest
) -> None:
    page = PAGES[path]
    endpoint = request.getfixturevalue("endpoint") if page.buckets else None
    Reader(tmp_path, commands, endpoint, port).follow(path, page)


def test_every_page_with_commands_is_run_with_few_listed_exceptions() -> None:
    pages = {path for folder in ("how-to", "runbooks") for path in (DOCS / folder).glob("*.md") if blocks_of(path)}
    assert pages == {*PAGES, *(DOCS / "how-to" / f"{name}.md" for name in ELSEWHERE)}
    for name, test in ELSEWHERE.items():
        assert re.search(rf'"{name}(\.md)?"', (ROOT / test).read_text()), "the test must name the page that it runs"
    for path, page in PAGES.items():
        lines = {line for language, body in blocks_of(path) if language != "python" for line in lines_of(body)}
        assert {*page.not_run, *page.codes, *page.before, *page.until} - set(_SHARED) <= lines, path
    assert sum(len(page.not_run) for page in PAGES.values()) == NOT_RUN_COUNT


_SHARED = ("tiered doctor", "tiered doctor --problems")


def test_page_with_a_failing_command_fails(tmp_path: Path, commands: Commands, port: int) -> None:
    wrong = tmp_path / "wrong.md"
    wrong.write_text("```sh\ntiered init\ntiered topic describe nothing   # there is none\n```\n")
    with pytest.raises(AssertionError, match="tiered topic describe nothing\nexit code 1"):
        Reader(tmp_path, commands, None, port).follow(wrong, Page())
