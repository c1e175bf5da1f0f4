"""A TCP proxy on loopback that adds latency to a server: to connections, and to every answer.

Data of the server arrives `delay_s` after it was sent, in order. Data to the server is not delayed. A request with its
answer so takes `delay_s` longer, and a new connection takes `delay_s` once more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

READ_BYTES = 1 << 16


@contextmanager
def far(url: str, delay_s: float) -> Iterator[str]:
    """The address of a proxy with a delay of `delay_s` to the server at `url`."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    proxy = _Proxy(place.hostname, place.port, delay_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(proxy.start(), loop).result()
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Proxy:
    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self._place = (host, port)
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._delay_s)
        there_reader, there_writer = await asyncio.open_connection(*self._place)
        for source, target, delay_s in ((reader, there_writer, 0.0), (there_reader, writer, self._delay_s)):
            task = asyncio.create_task(_carry(source, target, delay_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass on every piece `delay_s` after its arrival, and the end of the stream too."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                break
            target.write(piece)
        target.close()

    delivering = asyncio.create_task(deliver())
    try:
        while piece := await source.read(READ_BYTES):
            pieces.put_nowait((loop.time() + delay_s, piece))
    except ConnectionError:
        pass
    pieces.put_nowait((loop.time() + delay_s, b""))
    await delivering
