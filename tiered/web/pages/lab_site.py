"""Requests of the cost lab: topics are measured at most once a minute and simulated on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from local.errors import InvalidRequest
from policies.cost.prices import PriceTable
from tiered.config.price_file import configured_prices
from tiered.cost.arrival_rate import read_rates
from tiered.cost.cost_history import Measured, measured_streams
from tiered.cost.cost_lab import ALONG, CostLab, cost_lab, read_scenario
from tiered.manager.manager import LogManager
from tiered.web.pages.data_loader import DataLoader, Loaded, PageDeadline
from tiered.web.pages.lab import TOPICS_MAX, lab_facts, lab_page, nothing_page
from tiered.web.pages.lab_words import FIELD_OF
from tiered.web.pages.manager_cache import ManagerCache
from tiered.web.pages.stale_banner import age_banner, age_facts

MEASURED_MS = 60_000  # how long a measurement stays valid for simulations
ANSWER_MS = 60_000
_Basis = tuple[Sequence[Measured], int, PriceTable]  # measured topics, the number of the others, the prices


class Laboratory:
    """The cost lab over a manager. Thread safe."""

    def __init__(self, cache: ManagerCache, loader: DataLoader, now_ms: Callable[[], int]) -> None:
        self._cache, self._loader, self._now_ms = cache, loader, now_ms

    def page(self, query: Mapping[str, str]) -> str:
        """Raises InvalidRequest for invalid settings, NotFound for an unknown topic."""
        deadline = self._loader.deadline()
        basis = self._measured(query, deadline)
        measured, left_out, _ = basis.value
        if not any(each.stream is not None for each in measured):
            note = age_banner(self._cache, basis, self._now_ms(), cache_ms=MEASURED_MS)
            why = [each.warning for each in measured if each.warning is not None]
            return nothing_page(basis.at_ms, query, why, note)
        loaded = self._lab(query, basis, deadline)
        note = age_banner(self._cache, loaded, self._now_ms(), cache_ms=MEASURED_MS)
        return lab_page(loaded.value, query, loaded.at_ms, left_out, note)

    def facts(self, query: Mapping[str, str]) -> dict[str, object]:
        """The same as facts for programs. Also raises InvalidRequest if there is nothing to simulate."""
        deadline = self._loader.deadline()
        loaded = self._lab(query, self._measured(query, deadline), deadline)
        return {**age_facts(self._cache, loaded, self._now_ms(), cache_ms=MEASURED_MS), **lab_facts(loaded.value)}

    def _lab(self, query: Mapping[str, str], basis: Loaded[_Basis], deadline: PageDeadline) -> Loaded[CostLab]:
        asked, along = read_scenario(query), _along(query)
        measured, _, prices = basis.value

        def read() -> CostLab:
            return cost_lab(measured, asked, prices, along=along)

        key = f"lab?{_topic(query)}&{query.get('rate', '')}&{along}&{asked}&{basis.at_ms}"
        loaded = self._loader.get(key, read, keep_ms=ANSWER_MS, deadline=deadline)
        return replace(loaded, read_ms=basis.data_ms)

    def _measured(self, query: Mapping[str, str], deadline: PageDeadline) -> Loaded[_Basis]:
        topic, rates = _topic(query), _rates(query)

        def read(manager: LogManager) -> _Basis:
            now = self._now_ms()
            tiered = [each.name for each in manager.topics() if each.was_tiered]
            chosen = [topic] if topic else largest_topics(manager, tiered)
            found = measured_streams(manager, now, chosen, may_ask=False, rates=rates)
            return found, 0 if topic else len(tiered) - len(chosen), configured_prices(manager.config)

        key = f"measured?{topic}&{sorted(rates.items(), key=str)}"
        return self._cache.load(self._loader, key, read, keep_ms=MEASURED_MS, deadline=deadline)


def largest_topics(manager: LogManager, names: Sequence[str]) -> list[str]:
    """Return the TOPICS_MAX largest topics by bytes in both tiers, from the manager's memory."""
    sizes = dict.fromkeys(names, 0)
    for held in manager.partitions(names):
        manifest = held.manifest()
        stored = (
            sum(row.stored_bytes for row in manifest.segments) + sum(s.stored_bytes for s in manifest.pages)
            if manifest
            else 0
        )
        sizes[held.name.topic] += stored + held.log.size_bytes
    return sorted(sorted(names), key=lambda name: -sizes[name])[:TOPICS_MAX]


def _topic(query: Mapping[str, str]) -> str:
    return query.get("topic", "").strip()


def _rates(query: Mapping[str, str]) -> dict[str | None, float]:
    """Parse incoming rates as ``--rate`` has them, separated by commas. Raises InvalidRequest."""
    text = query.get("rate", "").strip()
    return read_rates(text.split(",")) if text else {}


def _along(query: Mapping[str, str]) -> str:
    text = query.get("along", "")
    if not text:
        return ALONG[0]
    if text not in FIELD_OF:
        raise InvalidRequest("invalid setting to draw along", along=repr(text), known=",".join(FIELD_OF))
    return FIELD_OF[text]
