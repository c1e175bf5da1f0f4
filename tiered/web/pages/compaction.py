"""The compaction page: how dirty each log is, which changes would help, and the last cleaner passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from local.cleaner.cleaner_history import CleaningRun
from local.names import TopicPartition
from policies.cleaner_advice import Advice
from tiered.config.units import counted, format_bytes, format_count, format_ms
from tiered.manager.manager import LogManager
from tiered.status.compaction_status import (
    CleanerMetrics,
    LogCleaningStatus,
    cleaner_metrics,
    compaction_advice,
    compaction_status,
    log_row,
)
from tiered.status.status_report import Row
from tiered.web.charts import bar
from tiered.web.html import Child, Html, tag
from tiered.web.pages.overview import shown
from tiered.web.pages.parts import (
    Heading,
    commands,
    figures,
    frame,
    lasted,
    numbers,
    page_count,
    paged,
    pager,
    partition_path,
    stamp,
    table,
)

HERE = "/compaction"
RUNS_SHOWN = 30
ADVICE_SHOWN = 20
_LOGS = (
    Heading("Partition"),
    Heading("State"),
    Heading("Dirty", is_number=True),
    Heading("Dirty and clean"),
    *numbers("Clean", "Cleanable", "Not cleanable yet", "Late", "Last pass", "Gained"),
)
_RUNS = (
    Heading("When", is_short=True),
    Heading("Partition"),
    *numbers("Before", "After"),
    Heading("Left"),
    *numbers("Records", "Took", "Buffer"),
    Heading("Result"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The state of compaction at one moment; `runs` oldest first."""

    logs: Sequence[LogCleaningStatus]
    metrics: CleanerMetrics
    advice: Sequence[Advice]
    runs: Sequence[CleaningRun]
    now_ms: int


def compaction_data(manager: LogManager, now_ms: int) -> Compaction:
    """Collect the state of compaction without a store request. Dirtiest logs first."""
    found = compaction_status(manager, now_ms, may_ask=False).values()
    return Compaction(
        logs=sorted(found, key=_urgency),
        metrics=cleaner_metrics(manager, now_ms, may_ask=False),
        advice=compaction_advice(manager, now_ms, may_ask=False),
        runs=manager.cleaning.runs,
        now_ms=now_ms,
    )


def compaction_page(found: Compaction, query: Mapping[str, str], note: Child = None) -> str:
    if not found.logs:
        words = "No topic is compacted. A topic with cleanup.policy=compact retains the newest record of each key:"
        first = commands("tiered topic create profiles -p 2 -X cleanup.policy=compact")
        return frame("Compaction", HERE, found.now_ms, note, tag("p", words), first)
    page, some = paged(found.logs, query)
    return frame(
        "Compaction",
        HERE,
        found.now_ms,
        note,
        _figures(found),
        _advice(found.advice),
        tag("h2", "Logs"),
        table(
            f"{counted(len(found.logs), 'compacted log')}, the dirtiest first",
            _LOGS,
            (_log(each, found) for each in some),
        ),
        pager(HERE, {}, page, len(found.logs)),
        tag("h2", "Last passes"),
        _passes(found),
        tag(
            "p",
            (
                "Dirty is the share of bytes above the cleaner checkpoint, of all bytes that a pass may "
                "clean. A pass is due above min.cleanable.dirty.ratio, or after max.compaction.lag.ms. "
                "Not cleanable yet: the active segment, min.compaction.lag.ms, open transactions."
            ),
            class_="faint",
        ),
    )


def compaction_facts(found: Compaction, query: Mapping[str, str]) -> dict[str, object]:
    """The same as facts for programs, one page of logs at a time."""
    page, some = paged(found.logs, query)
    return {
        "now_ms": found.now_ms,
        "metrics": asdict(found.metrics),
        "advice": [
            {
                "rule": each.rule,
                "topic": each.partition.topic if each.partition is not None else None,
                "partition": each.partition.partition if each.partition is not None else None,
                "setting": each.setting,
                "text": each.text,
            }
            for each in found.advice
        ],
        "partitions": [log_row(each, found.now_ms) for each in some],
        "runs": [asdict(each) for each in found.runs[-RUNS_SHOWN:]],
        "page": page,
        "pages": page_count(len(found.logs)),
    }


def _urgency(each: LogCleaningStatus) -> tuple[bool, float, TopicPartition]:
    return each.uncleanable is None, -each.log.dirty_ratio, each.log.partition


def _figures(found: Compaction) -> Html:
    of = found.metrics
    due = sum(each.log.is_eligible for each in found.logs)
    ago = "none yet" if of.time_since_last_run_ms is None else f"{lasted(of.time_since_last_run_ms)} ago"
    uncleanable = tag("span", format_count(of.uncleanable_partitions_count), class_="bad")
    return figures(
        {
            "Compacted logs": format_count(len(found.logs)),
            "Due": format_count(due),
            "Dirtiest": f"{max(each.log.dirty_ratio for each in found.logs):.0%}",
            "Cleanable": format_bytes(sum(each.log.cleanable_bytes for each in found.logs)),
            "Uncleanable": uncleanable if of.uncleanable_partitions_count else "none",
            "Fullest buffer": f"{of.max_buffer_utilization_percent}%",
            "Longest last pass": f"{of.max_clean_time_secs} s",
            "Last pass": ago,
        }
    )


def _advice(advice: Sequence[Advice]) -> list[Html]:
    heading = tag("h2", "Advice", id="advice")
    if not advice:
        return [heading, tag("p", "None: cleaning keeps up, according to its history.")]
    items = [tag("li", _advised(each)) for each in advice[:ADVICE_SHOWN]]
    rest = len(advice) - ADVICE_SHOWN
    more = tag("p", f"{rest:,} more: ", tag("code", "tiered compaction advise")) if rest > 0 else None
    return [heading, tag("ul", items), *([more] if more is not None else [])]


def _advised(each: Advice) -> list[Child]:
    where = _link(each.partition) if each.partition is not None else "The cleaner"
    setting: Child = [" ", tag("code", each.setting)] if each.setting is not None else None
    return [tag("strong", where), ": ", each.text, setting]


def _log(each: LogCleaningStatus, found: Compaction) -> list[Child]:
    row = log_row(each, found.now_ms)
    state: Child = str(row["state"])
    if each.uncleanable is not None:
        state = [tag("span", "uncleanable", class_="bad"), f": {' '.join(each.uncleanable.reason.split())}"]
    parts = [("dirty", float(each.log.cleanable_bytes)), ("clean", float(each.log.clean_bytes))]
    return [
        _link(each.log.partition),
        state,
        _share(row["dirty_ratio"]),
        bar(parts, sum(value for _, value in parts)),
        shown(row, "clean_bytes", format_bytes),
        shown(row, "cleanable_bytes", format_bytes),
        shown(row, "uncleanable_bytes", format_bytes),
        format_ms(each.log.delay_ms) if each.log.delay_ms else "-",
        f"{lasted(found.now_ms - each.last_run.at_ms)} ago" if each.last_run is not None else "never",
        _share(row["size_reduction"]),
    ]


def _passes(found: Compaction) -> Html:
    if not found.runs:
        return tag("p", "None yet.")
    some = list(reversed(found.runs[-RUNS_SHOWN:]))
    caption = f"Recorded passes, {len(some):,} of {len(found.runs):,}, the newest first"
    return table(caption, _RUNS, (_pass(each) for each in some))


def _pass(run: CleaningRun) -> list[Child]:
    row: Row = {"before": run.bytes_before, "after": run.bytes_after}
    is_done = run.error is None
    came: Child = tag("span", "failed", class_="bad") if not is_done else f"{run.size_reduction:.0%} smaller"
    return [
        stamp(run.at_ms),
        _link(run.name),
        shown(row, "before", format_bytes) if is_done else "-",
        shown(row, "after", format_bytes) if is_done else "-",
        bar([("clean", run.bytes_after)], max(run.bytes_before, run.bytes_after, 1)) if is_done else None,
        f"{run.records_before:,} to {run.records_after:,}" if is_done else "-",
        f"{run.seconds:.1f} s",
        _share(run.buffer_utilization) if is_done else "-",
        [came, f": {run.error}" if run.error is not None else None],
    ]


def _link(name: TopicPartition) -> Html:
    return tag("a", str(name), href=partition_path(name))


def _share(value: object) -> str:
    return f"{value:.0%}" if isinstance(value, float) else "-"
