"""A store that answers nothing, at once: for looks at the disk while the real one hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

from local.errors import Unavailable
from remote.store import ObjectStore


def silent_store(url: str) -> ObjectStore:
    """Every call of it raises Unavailable."""
    return cast(ObjectStore, _Silent(url))


class _Silent:
    def __init__(self, url: str) -> None:
        self.url = url

    def close(self) -> None:
        """There is nothing to let go of."""

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        def refuse(*args: object, **more: object) -> NoReturn:
            raise Unavailable("the store has not answered yet", store=self.url, verb=verb)

        return refuse
