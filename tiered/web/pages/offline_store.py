"""A store that fails every call at once: for reading the disk while the real store hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

from local.errors import Unavailable
from remote.store import ObjectStore


def silent_store(url: str) -> ObjectStore:
    """Return a store whose every call raises Unavailable."""
    return cast(ObjectStore, _Silent(url))


class _Silent:
    def __init__(self, url: str) -> None:
        self.url = url

    def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        def refuse(*args: object, **more: object) -> NoReturn:
            raise Unavailable("the store has not replied yet", store=self.url, verb=verb)

        return refuse
