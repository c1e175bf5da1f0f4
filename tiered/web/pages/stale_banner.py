"""The banner above every page: the time of its data, and the reason if the data is too old."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiered.web.html import Html, tag
from tiered.web.pages.data_loader import Loaded
from tiered.web.pages.manager_cache import AGE_MAX_MS, ManagerCache
from tiered.web.pages.parts import lasted, stamp


def age_banner(cache: ManagerCache, loaded: Loaded[Any], now_ms: int, *, cache_ms: int = 0) -> list[Html]:
    """The age of a page's data, with a mark if it is older than AGE_MAX_MS and `cache_ms` allow."""
    why = _why_old(cache, loaded, now_ms, cache_ms)
    age_ms = max(0, now_ms - loaded.data_ms)
    age = tag("p", f"Data of {stamp(loaded.data_ms)}, {lasted(age_ms)} old.", id="age", class_="faint")
    return [age] if why is None else [_note(why), age]


def age_facts(cache: ManagerCache, loaded: Loaded[Any], now_ms: int, *, cache_ms: int = 0) -> Mapping[str, object]:
    """The same for programs; `stale` is the reason for old data, else null."""
    why = _why_old(cache, loaded, now_ms, cache_ms)
    return {"data_ms": loaded.data_ms, "age_ms": max(0, now_ms - loaded.data_ms), "stale": why}


def _why_old(cache: ManagerCache, loaded: Loaded[Any], now_ms: int, cache_ms: int) -> str | None:
    """None for data within its limit that waits for no newer open."""
    stale = cache.stale()
    if stale is not None:
        _, why = stale
        return f"The data shown is of {stamp(loaded.data_ms)}; {why}."
    if loaded.late_since_ms is not None:
        waits = f"Refreshing for {lasted(now_ms - loaded.late_since_ms)}: the disk does not reply, or "
        return f"{waits}this machine is busy. The data shown is of {stamp(loaded.data_ms)}."
    if now_ms - loaded.data_ms > AGE_MAX_MS + cache_ms:
        return (
            f"The data shown is of {stamp(loaded.data_ms)}, {lasted(now_ms - loaded.data_ms)} ago; a "
            "refresh is in progress."
        )
    return None


def _note(words: str) -> Html:
    return tag("div", words, class_="trouble", id="late", role="alert")
