"""Regular expressions of subscriptions, by RE2: its time is linear in the text, whatever the expression.

The only module that imports `re2`. RE2 bounds the memory of an expression; a longer or a larger one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

PATTERN_CHARS_MAX = 2048
STEP_COST_MAX = 20_000  # instructions of a program times names
_MATCH_COST, _COMPILE_COST = 10, 1000  # as instructions
_MEMORY_BYTES = 128 << 10  # of it, RE2 gives a program about 1,300 instructions


@cache
def _options() -> object:
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _MEMORY_BYTES, False
    return options


def regex_error(pattern: str) -> str | None:
    """Why the expression is invalid; None if it is valid."""
    try:
        import re2
    except ImportError:
        return "this server has no google-re2, which the extra `kafka` of tiered installs"

    if len(pattern) > PATTERN_CHARS_MAX:
        return f"it has more than {PATTERN_CHARS_MAX} characters"
    try:
        re2.compile(pattern, _options())
    except re2.error as error:
        found = error.args[0] if error.args else ""
        return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
    return None


class Resolution:
    """The names that each expression matches as a whole, sorted. An invalid expression matches none.

    A step has a bounded cost, so that the expressions of many groups take turns.
    """

    def __init__(self, patterns: Iterable[str], names: Iterable[str]) -> None:
        self._patterns, self._names = sorted(patterns), sorted(names)
        self._pattern = self._name = 0  # indexes of the next match
        self._matched: list[str] = []
        self._found: dict[str, tuple[str, ...]] = {}

    def step(self) -> dict[str, tuple[str, ...]] | None:
        """The result; None if a further step is needed."""
        import re2

        cost = 0
        while self._pattern < len(self._patterns):
            pattern = self._patterns[self._pattern]
            if regex_error(pattern) is None:
                compiled = re2.compile(pattern, _options())
                price = compiled.programsize + _MATCH_COST
                end = self._name + 1 + max(0, STEP_COST_MAX - cost) // price
                names = self._names[self._name : end]
                self._matched += [each for each in names if compiled.fullmatch(each)]
                self._name += len(names)
                cost += len(names) * price + _COMPILE_COST
                if self._name < len(self._names):
                    return None
            self._found[pattern] = tuple(self._matched)
            self._pattern, self._name, self._matched = self._pattern + 1, 0, []
            if cost >= STEP_COST_MAX and self._pattern < len(self._patterns):
                return None
        return self._found
