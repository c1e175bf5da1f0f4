"""What a store may be asked for: the protocol is the list of all that anything here relies on."""

from __future__ import annotations

import inspect

from remote.store import ObjectStore


def test_the_only_condition_that_a_verb_may_ask_for_is_that_nothing_is_there() -> None:
    """Conditional overwrites, deletes and reads (`If-Match`) are not among them, so the probe need not look at them."""
    verbs = {name: each for name, each in vars(ObjectStore).items() if inspect.isfunction(each) and name[0] != "_"}
    assert [name for name in verbs if "if_" in name] == ["put_if_absent"]
    asked = {word for each in verbs.values() for word in inspect.signature(each).parameters}
    assert not {word for word in asked if "match" in word or "etag" in word or "generation" in word}
