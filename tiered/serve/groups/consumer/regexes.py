"""Regular expressions of subscriptions, by RE2: its time is linear in the text, whatever the expression.

The only module that imports `re2`. RE2 bounds the memory of an expression; a longer or a larger one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

PATTERN_CHARS_MAX = 4096
_MEMORY_BYTES = 1 << 20


@cache
def _options() -> object:
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _MEMORY_BYTES, False
    return options


def regex_error(pattern: str) -> str | None:
    """Why the expression is invalid; None if it is valid."""
    import re2

    if len(pattern) > PATTERN_CHARS_MAX:
        return f"it has more than {PATTERN_CHARS_MAX} characters"
    try:
        re2.compile(pattern, _options())
    except re2.error as error:
        found = error.args[0] if error.args else ""
        return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
    return None


def resolve(patterns: Iterable[str], names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names that each expression matches as a whole, sorted. An invalid expression matches none."""
    import re2

    names = sorted(names)
    found: dict[str, tuple[str, ...]] = {}
    for pattern in patterns:
        if regex_error(pattern) is None:
            compiled = re2.compile(pattern, _options())
            found[pattern] = tuple(each for each in names if compiled.fullmatch(each))
        else:
            found[pattern] = ()
    return found
