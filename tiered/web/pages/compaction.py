"""The compaction page: how dirty each log is, which changes would help, and the last cleaner passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
from tiered.web.charts import bar
from tiered.web.html import (
    Child,
    Heading,
    Html,
    commands,
    figure,
    figures,
    frame,
    lasted,
    page_count,
    paged,
    pager,
    partition_path,
    stamp,
    table,
    tag,
)

HERE = "/compaction"
RUNS_SHOWN = 30
ADVICE_SHOWN = 20
Row = dict[str, Any]


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
            (log_row(each, found.now_ms) for each in some),
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


def _passes(found: Compaction) -> Html:
    if not found.runs:
        return tag("p", "None yet.")
    some = list(reversed(found.runs[-RUNS_SHOWN:]))
    caption = f"Recorded passes, {len(some):,} of {len(found.runs):,}, the newest first"
    return table(caption, _RUNS, some)


def _state(row: Row) -> Child:
    reason = row["uncleanable_reason"]
    return (
        row["state"] if reason is None else [tag("span", "uncleanable", class_="bad"), f": {' '.join(reason.split())}"]
    )


def _dirty_and_clean(row: Row) -> Html:
    parts = [("dirty", float(row["cleanable_bytes"])), ("clean", float(row["clean_bytes"]))]
    return bar(parts, sum(value for _, value in parts))


def _result(run: CleaningRun) -> list[Child]:
    if run.error is not None:
        return [tag("span", "failed", class_="bad"), f": {run.error}"]
    return [f"{run.size_reduction:.0%} smaller"]


def _link(name: TopicPartition) -> Html:
    return tag("a", str(name), href=partition_path(name))


def _share(value: object) -> str:
    return f"{value:.0%}" if isinstance(value, float) else "-"


def _of_done(title: str, show: Callable[[CleaningRun], Child], *, is_number: bool = True) -> Heading:
    """A column of passes that came to their end; a dash for the others."""
    return Heading(title, is_number=is_number, cell=lambda run: show(run) if run.error is None else None)


_LOGS = (
    Heading("Partition", cell=lambda row: _link(TopicPartition(row["topic"], row["partition"]))),
    Heading("State", cell=_state),
    Heading("Dirty", is_number=True, cell=lambda row: _share(row["dirty_ratio"])),
    Heading("Dirty and clean", cell=_dirty_and_clean),
    figure("Clean", "clean_bytes", format_bytes),
    figure("Cleanable", "cleanable_bytes", format_bytes),
    figure("Not cleanable yet", "uncleanable_bytes", format_bytes),
    Heading("Late", is_number=True, cell=lambda row: format_ms(row["delay_ms"]) if row["delay_ms"] else None),
    Heading(
        "Last pass",
        is_number=True,
        cell=lambda row: "never" if row["ago_ms"] is None else f"{lasted(row['ago_ms'])} ago",
    ),
    Heading("Gained", is_number=True, cell=lambda row: _share(row["size_reduction"])),
)
_RUNS = (
    Heading("When", is_short=True, cell=lambda run: stamp(run.at_ms)),
    Heading("Partition", cell=lambda run: _link(run.name)),
    _of_done("Before", lambda run: format_bytes(run.bytes_before)),
    _of_done("After", lambda run: format_bytes(run.bytes_after)),
    _of_done(
        "Left",
        lambda run: bar([("clean", run.bytes_after)], max(run.bytes_before, run.bytes_after, 1)),
        is_number=False,
    ),
    _of_done("Records", lambda run: f"{run.records_before:,} to {run.records_after:,}"),
    Heading("Took", is_number=True, cell=lambda run: f"{run.seconds:.1f} s"),
    _of_done("Buffer", lambda run: _share(run.buffer_utilization)),
    Heading("Result", cell=_result),
)
