"""Log lines as JSON: one object a line, with the message's facts as fields.

A message is a constant text followed by ``name=%s`` for each fact; `message` is the text alone, so lines of one kind
can be counted. A fact named as a standard field (`time`, `level`, `logger`, `message`, `error`) gets an underscore.
"""

from __future__ import annotations

import datetime
import json
import logging
import re

_FACT = re.compile(r"(?:[:,;]?\s*)([A-Za-z_][A-Za-z0-9_.]*)=%[-+0-9.]*[sdrfx]")
_SLOT = re.compile(r"%[-+0-9.]*[sdrfx]")
_OURS = ("time", "level", "logger", "message", "error")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; never raises for its content."""

    def format(self, record: logging.LogRecord) -> str:
        text, facts = split_facts(record)
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        body: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": text,
        }
        if record.exc_info and record.exc_info[0] is not None:
            body["error"] = self.formatException(record.exc_info)
        body |= {f"{name}_" if name in _OURS else name: value for name, value in facts.items()}
        return json.dumps(body, ensure_ascii=False, default=str)


def split_facts(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """Return (constant text, facts) of a record; (whole message, no facts) for another form."""
    template = record.msg if isinstance(record.msg, str) else str(record.msg)
    values = record.args if isinstance(record.args, tuple) else ()
    slots = list(_SLOT.finditer(template))
    names = {match.end(): match[1] for match in _FACT.finditer(template)}
    if not names or len(slots) != len(values) or "%%" in template:
        return record.getMessage(), {}
    facts = {names[slot.end()]: _plain(value) for slot, value in zip(slots, values, strict=True) if slot.end() in names}
    others = tuple(value for slot, value in zip(slots, values, strict=True) if slot.end() not in names)
    return _FACT.sub("", template) % others, facts


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
