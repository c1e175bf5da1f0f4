"""The verbs of an object store: the protocol lists everything that the project relies on."""

from __future__ import annotations

import inspect

from remote.store import ObjectStore


def test_create_if_absent_is_the_only_condition_of_the_store_verbs() -> None:
    """There are no conditional overwrites, deletes or reads (`If-Match`), so the probe need not test them."""
    verbs = {name: each for name, each in vars(ObjectStore).items() if inspect.isfunction(each) and name[0] != "_"}
    assert [name for name in verbs if "if_" in name] == ["put_if_absent"]
    asked = {word for each in verbs.values() for word in inspect.signature(each).parameters}
    assert not {word for word in asked if "match" in word or "etag" in word or "generation" in word}
