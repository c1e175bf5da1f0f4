"""One headless Chromium for the whole run, and the deployments shared by its tests."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
import web_scenes
from headless import BrowserMissing, Chromium, chosen_programs, find_chromium


@pytest.fixture(scope="session", params=chosen_programs(), ids=os.path.basename)
def chromium(request):
    try:
        browser = Chromium(find_chromium(request.param))
    except BrowserMissing as missing:
        pytest.skip(str(missing))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    """The directory of screenshots: TIERED_PICTURES, or a temporary directory."""
    given = os.environ.get("TIERED_PICTURES")
    folder = Path(given) if given else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def scenes():
    """Deployments by their name in `web_scenes`, each made once. No test changes them."""
    with ExitStack() as stack:
        made: dict[str, web_scenes.Scene] = {}

        def scene(name: str) -> web_scenes.Scene:
            if name not in made:
                made[name] = stack.enter_context(getattr(web_scenes, name)())
            return made[name]

        yield scene
