"""A headless Chromium for the tests of the pages: the system's Chromium driven by playwright, without any download.

The event loop of the driver runs in its own thread, so that tests are plain functions without a loop around them. A tab
records its console messages and requests.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LIMIT_S = 60.0  # no operation takes this long, so a hanging test fails
DESKTOP, PHONE, NARROW = (1280, 800), (390, 844), (320, 640)  # 320 is 1280 at a zoom of 400 % (WCAG 1.4.10)
# Requests of Chromium to its vendor are disabled. No name except loopback is resolved.
_FLAGS = (
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    "--disable-dev-shm-usage",
)


class BrowserMissing(Exception):
    """Why no browser is available on this machine."""


def chosen_programs() -> list[str]:
    """The browsers to test with: those of TIERED_CHROMIUM, comma separated.

    ``all`` stands for every installed one of `NAMES`. Without the variable it is the first installed one. At least one
    name is returned, installed or not.
    """
    asked = os.environ.get("TIERED_CHROMIUM", "")
    if asked and asked != "all":
        return asked.split(",")
    there = list({os.path.realpath(path): name for name in reversed(NAMES) if (path := shutil.which(name))}.values())
    return (there[::-1] if asked else there[-1:]) or [NAMES[0]]


def find_chromium(name: str) -> str:
    """The path of the program. Raises BrowserMissing."""
    found = shutil.which(name)
    if found is None:
        raise BrowserMissing(f"no {name} on the path (Debian: apt-get install chromium-headless-shell)")
    return found


class Chromium:
    """The browser process, and the thread that drives it."""

    def __init__(self, program: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chromium-driver", daemon=True)
        self._thread.start()
        try:
            self.run(self._launch(program))
        except BaseException:
            self._end_loop()
            raise

    def clock(self) -> float:
        """Seconds of the driver's event loop."""
        return self._loop.time()

    def run(self, deed: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine of the driver."""
        return asyncio.run_coroutine_threadsafe(deed, self._loop).result(LIMIT_S)

    def open(self, root: str, size: tuple[int, int] = DESKTOP, *, scripts: bool = True) -> Tab:
        """An empty tab with its own context: no cookies and no cache of other tabs."""
        return Tab(self, root, self.run(self._tab(size, scripts=scripts)))

    def close(self) -> None:
        try:
            self.run(self._quit())
        finally:
            self._end_loop()

    async def _launch(self, program: str) -> None:
        from playwright.async_api import async_playwright

        self._driver = await async_playwright().start()
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # no sandbox as root
        try:
            self._browser = await self._driver.chromium.launch(executable_path=program, args=flags)
        except BaseException:
            await self._driver.stop()
            raise

    async def _tab(self, size: tuple[int, int], *, scripts: bool) -> Any:
        width, height = size
        context = await self._browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=scripts, reduced_motion="reduce"
        )
        context.set_default_timeout(LIMIT_S * 1000 / 2)
        return await context.new_page()

    async def _quit(self) -> None:
        await self._browser.close()
        await self._driver.stop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Tab:
    """One page of the browser.

    `said` are errors and warnings of its console and scripts, `failed` its failed requests, `asked` the addresses of
    all
    requests.
    """

    def __init__(self, browser: Chromium, root: str, page: Any) -> None:
        self.said: list[str] = []
        self.failed: list[str] = []
        self.asked: list[str] = []
        self._browser, self._root, self._page = browser, root, page
        self._run(self._listen())

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._page.context.close())

    def go(self, path: str) -> int:
        """Open a page of the site. Returns the HTTP status."""
        answer = self._run(self._page.goto(self._root + path, wait_until="load"))
        return int(answer.status)

    def js(self, expression: str, given: object = None) -> Any:
        """The value of an expression in the page, or the result of a function of `given`."""
        return self._run(self._page.evaluate(expression, given))

    def count_fetches(self) -> None:
        """Count the requests of the page's scripts from now on. A browser requests icons at any time."""
        self.js(
            "() => { const real = window.fetch; window.fetches = 0;"
            " window.fetch = (...given) => { window.fetches++; return real(...given); }; }"
        )

    def fetches(self) -> int:
        return int(self.js("window.fetches"))

    def wait(self, condition: str, given: object = None) -> None:
        """Wait until the page is loaded, with its stylesheet, and an expression is true. Both are polled from outside,
        because the page's policy forbids evaluating text."""
        self._run(self._until(condition, given))

    def press(self, *keys: str) -> None:
        for key in keys:
            self._run(self._page.keyboard.press(key))

    def type(self, text: str) -> None:
        self._run(self._page.keyboard.type(text))

    def click(self, selector: str) -> None:
        self._run(self._page.click(selector))

    def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return str(self._run(self._page.inner_text(selector)))

    def resize(self, size: tuple[int, int]) -> None:
        self._run(self._page.set_viewport_size({"width": size[0], "height": size[1]}))

    def theme(self, scheme: str) -> None:
        """Set the preferred colour scheme, ``light`` or ``dark``."""
        self._run(self._page.emulate_media(color_scheme=scheme))

    def hold_clock(self) -> None:
        """From the next page on, only `pass_time` moves the clock and the timers of the page."""
        now_s = time.time()
        self._run(self._page.clock.install(time=now_s))
        self._run(self._page.clock.pause_at(now_s + LIMIT_S))  # an installed clock runs by itself until it is paused

    def pass_time(self, ms: int) -> None:
        """Advance the clock and fire every timer that is due."""
        self._run(self._page.clock.run_for(ms))

    def picture(self, path: str, *, whole: bool = True) -> None:
        """Take a screenshot of the `whole` page or of the visible part."""
        self._run(self._page.screenshot(path=path, full_page=whole))

    def elsewhere(self, root: str | None = None) -> Sequence[str]:
        """Requested addresses outside of the site."""
        return [url for url in self.asked if not url.startswith((root or self._root) + "/")]

    def _run(self, deed: Coroutine[Any, Any, Any]) -> Any:
        return self._browser.run(deed)

    async def _until(self, condition: str, given: object) -> None:
        limit = self._browser.clock() + LIMIT_S / 2
        while not await self._is_true(condition, given):
            if self._browser.clock() > limit:
                raise TimeoutError(f"never true: {condition} {given or ''}; the page says {await self._words()!r}")
            await asyncio.sleep(0.02)

    async def _is_true(self, condition: str, given: object) -> bool:
        from playwright.async_api import Error

        try:
            is_loaded = await self._page.evaluate("document.readyState === 'complete'")
            return is_loaded and bool(await self._page.evaluate(condition, given))
        except Error as error:
            if "context was destroyed" in str(error):
                return False  # the page is being replaced by another
            raise

    async def _words(self) -> str:
        return str(await self._page.inner_text("body"))[:2000]

    async def _listen(self) -> None:
        page = self._page
        page.on("console", lambda each: self.said.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda each: self.asked.append(each.url))
        page.on("requestfailed", self._request_failed)
        page.on("response", self._answered)

    def _request_failed(self, request: Any) -> None:
        # Chromium aborts the icon request of a page that `go` leaves early. This is no fault of the server.
        if not (request.url.endswith("/favicon.svg") and request.failure == "net::ERR_ABORTED"):
            self.failed.append(f"{request.url}: {request.failure}")

    def _answered(self, answer: Any) -> None:
        if answer.status >= 400:
            self.failed.append(f"{answer.url}: {answer.status}")

    def _dismiss(self, dialog: Any) -> None:
        self.said.append(f"dialog: {dialog.message}")
        task = asyncio.ensure_future(dialog.dismiss())
        task.add_done_callback(lambda done: done.exception())
