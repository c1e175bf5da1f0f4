"""Check of all JSON that a command prints in the test process against its schema, in every test of the suite.

All rows of all commands use one writer (`tiered.cli.render`). `watch` wraps this writer. Violations are collected for
`take_wrong`, because an exception inside a command would look like an error of the command.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterable, Mapping
from typing import get_args, get_origin

import click
import msgspec
from json_schemas import COMMANDS, SCHEMAS

from tiered.cli import render

# `-o jsonl` of these commands prints only the columns of the chosen sections.
WITH_SECTIONS = {"status"}

seen: set[str] = set()  # names of schemas that were matched by printed JSON
_wrong: list[str] = []


class _Written(threading.local):
    """State of a thread, like the context of click."""

    def __init__(self) -> None:
        # possible types of the object being written; empty before its beginning
        self.heads: list[tuple[type, ...]] = []


_written = _Written()


def watch() -> None:
    """Wrap the JSON writer. Call once in a process."""
    write, spell = render._write_json, render._json

    def watched_write(what: str, entries: Iterable[Mapping[str, object]], facts: Mapping[str, object]) -> None:
        _written.heads.append(())
        try:
            write(what, entries, facts)
        finally:
            _written.heads.pop()

    def watched_spell(value: object) -> str:
        text = spell(value)
        command = command_of(click.get_current_context(silent=True))
        if command is not None:
            _note(command, json.loads(text))
        return text

    render._write_json, render._json = watched_write, watched_spell


def take_wrong() -> list[str]:
    """The violations since the last call."""
    found, _wrong[:] = list(_wrong), []
    return found


def command_of(context: click.Context | None) -> str | None:
    """``topic list``, for example. None for a command of another program."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        # `apply --auto --dry-run` prints like its inner `plan`
        if not names or isinstance(context.command, click.Group):
            names.insert(0, str(context.info_name))
        context = context.parent
    from tiered.cli.main import main

    return " ".join(names) if names and context is not None and context.command is main else None


def _note(command: str, value: dict[str, object]) -> None:
    try:
        is_head = bool(_written.heads) and not _written.heads[-1]
        if is_head:
            _written.heads[-1] = check_object(command, value)
        else:
            entries = check_row(command, value, _written.heads[-1] if _written.heads else ())
            if _written.heads:
                _written.heads[-1] = tuple(
                    each for each in _written.heads[-1] if not set(entries).isdisjoint(row_types(each))
                )
        if _written.heads and (len(_written.heads[-1]) == 1 or not is_head):
            seen.update(name for name in COMMANDS[command] if SCHEMAS[name] in _written.heads[-1])
    except (msgspec.ValidationError, LookupError) as error:
        _wrong.append(f"tiered {command}: {error}: {json.dumps(value)[:1000]}")


def check_object(command: str, value: dict[str, object]) -> tuple[type, ...]:
    """The types of the command that have these fields. Raises LookupError and ValidationError."""
    return _converted(value, types_of(command))


def check_row(command: str, entry: dict[str, object], heads: tuple[type, ...] = ()) -> tuple[type, ...]:
    """The possible types of a row in an object of one of `heads`, or of a line of the command."""
    types = tuple(each for one in heads or types_of(command) for each in row_types(one))
    if not heads and command in WITH_SECTIONS:
        for found in (each for each in types if set(entry) <= set(each.__struct_encode_fields__)):
            for each in msgspec.structs.fields(found):
                if each.encode_name in entry:
                    msgspec.convert(entry[each.encode_name], each.type)
            return types
    return _converted(entry, types)


def _converted(value: dict[str, object], types: tuple[type, ...]) -> tuple[type, ...]:
    """The types that match `value`. Raises the first error if only the fields match and no values do."""
    found, complaint = [], None
    for each in _of_fields(types, frozenset(value)):
        try:
            msgspec.convert(value, each)
        except msgspec.ValidationError as error:
            complaint = complaint or error
        else:
            found.append(each)
    if complaint is not None and not found:
        raise complaint
    return tuple(found)


def types_of(command: str) -> tuple[type, ...]:
    return tuple(SCHEMAS[name] for name in COMMANDS[command])


@functools.cache
def row_types(of: type) -> tuple[type, ...]:
    """The element types of the lists of a type."""
    if not _tag(of):
        return (of,)  # a line by itself
    found = []
    for each in msgspec.structs.fields(of):
        for one in (each.type, *get_args(each.type)):
            if get_origin(one) is list and isinstance(get_args(one)[0], type(msgspec.Struct)):
                found.append(get_args(one)[0])
    return tuple(found)


@functools.cache
def _of_fields(types: tuple[type, ...], fields: frozenset[str]) -> tuple[type, ...]:
    found = [each for each in types if _always(each) <= fields and _may(each, fields)]
    if not found:
        told = [sorted(fields ^ set(each.__struct_encode_fields__)) for each in types]
        raise LookupError(f"no schema has these fields; others are {told}")
    return tuple(found)


def _always(of: type) -> frozenset[str]:
    """The required fields."""
    return frozenset(each.encode_name for each in msgspec.structs.fields(of) if each.required) | _tag(of)


def _may(of: type, fields: frozenset[str]) -> bool:
    return not of.__struct_config__.forbid_unknown_fields or fields <= {*of.__struct_encode_fields__, *_tag(of)}


def _tag(of: type) -> frozenset[str]:
    """`schema_version`, the tag of a result."""
    config = of.__struct_config__
    return frozenset(() if config.tag_field is None else (config.tag_field,))
