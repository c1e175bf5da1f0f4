"""Advice about settings with which cleaning cannot keep up. Source: the tuning guides for Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from local.cleaner.cleaner_history import CleaningRun
from local.names import TopicPartition
from policies.compaction import LogToClean
from policies.formatting import counted, format_ms
from policies.rules import DAY_MS, PartitionRules

BUSY = 0.9  # share of the time
RUNS_MIN = 3  # passes with different start times; with fewer, a rate means nothing
SPAN_MIN_MS = 60_000  # a shorter span is a backlog that the cleaner works off
GAIN_MIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerFacts:
    """The cleaner's settings. `buffer_bytes` is one thread's; `bytes_per_second` is None without a limit."""

    threads: int
    buffer_bytes: int
    load_factor: float
    bytes_per_second: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """A compacted log. `quiet_ms`: age of its newest record. `held_from`: start of a blocking transaction."""

    log: LogToClean
    rules: PartitionRules
    closed_bytes: int
    active_bytes: int
    quiet_ms: int
    held_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change. `partition` None: the whole cleaner. `setting` None: no setting would help."""

    rule: str
    partition: TopicPartition | None
    setting: str | None
    text: str


def advise(cleaner: CleanerFacts, logs: Sequence[LogFacts], runs: Sequence[CleaningRun]) -> list[Advice]:
    """Return all advice, about the whole cleaner first. `logs` are compacted; `runs` are oldest first."""
    names = {each.log.partition for each in logs}
    runs = [run for run in runs if run.name in names]
    found = [*_full_buffers(cleaner, runs), *_too_slow(cleaner, runs)]
    for facts in logs:
        own = [run for run in runs if run.name == facts.log.partition and run.error is None]
        open_since = f"a transaction that is open since offset {facts.held_from}"
        held = f"{open_since} prevents the cleaning of all later records; abort it"
        for rule, setting, text in (
            ("never-cleanable", "min.compaction.lag.ms", _never_due(facts.rules)),
            ("held-by-transaction", None, held if facts.held_from is not None else None),
            ("never-rolls", "max.compaction.lag.ms", _never_rolls(facts)),
            ("idle-passes", "max.compaction.lag.ms", _idle_passes(facts.rules.max_compaction_lag_ms, own[-RUNS_MIN:])),
        ):
            if text is not None:
                found.append(Advice(rule=rule, partition=facts.log.partition, setting=setting, text=text))
    return found


def _full_buffers(cleaner: CleanerFacts, runs: Sequence[CleaningRun]) -> Iterator[Advice]:
    found = {name: _cut_runs(name, cleaner, runs) for name in _names(runs)}
    cut = {name: some for name, some in found.items() if some}
    if not cut:
        return
    worst = max((each for some in cut.values() for each in some), key=len)
    passes, keys = len(worst), sum(run.distinct_keys for run in worst)
    enough = max(2, passes) * cleaner.buffer_bytes * cleaner.threads
    text = (
        f"{counted(len(cut), 'log')} needed several passes for one dirty part, {worst[0].name} "
        f"{('at least ' if worst[-1].is_cut else '')}{passes}, because {keys} keys did not fit in a buffer of "
        f"{cleaner.buffer_bytes} bytes; give the buffer at least {enough}"
    )
    yield Advice(rule="full-buffer", partition=worst[0].name, setting="log.cleaner.dedupe.buffer.size", text=text)


def _cut_runs(name: TopicPartition, cleaner: CleanerFacts, runs: Sequence[CleaningRun]) -> list[list[CleaningRun]]:
    found: list[list[CleaningRun]] = []
    is_open = False
    for run in runs:
        if run.name != name or run.error is not None or 0 < run.buffer_bytes < cleaner.buffer_bytes:
            continue
        if is_open:
            found[-1].append(run)
        elif run.is_cut:
            found.append([run])
        is_open = run.is_cut
    return found


def _too_slow(cleaner: CleanerFacts, runs: Sequence[CleaningRun]) -> Iterator[Advice]:
    """Yield advice if threads clean nearly all the time. More threads do not help a single busy log."""
    done = [run for run in runs if run.error is None]
    span_ms = _span_ms(done)
    busy = sum(run.seconds for run in done) * 1000 / (span_ms * cleaner.threads) if span_ms else 0.0
    moved = sum(run.bytes_read + run.bytes_written for run in done)
    seconds = sum(run.seconds for run in done)
    if busy >= BUSY:
        limit = cleaner.bytes_per_second
        is_held_back = limit is not None and moved >= BUSY * limit * span_ms / 1000
        speed = f"{moved / max(seconds, 1e-9) / 2**20:.1f} MB/s a thread"
        help_ = "more threads clean more logs at a time"
        yield Advice(
            rule="throttled" if is_held_back else "too-few-threads",
            partition=None,
            setting="log.cleaner.io.max.bytes.per.second" if is_held_back else "log.cleaner.threads",
            text=f"{counted(cleaner.threads, 'thread')} busy {busy:.0%} of {span_ms / 1000:.0f} s at {speed}; "
            + ("a rate limit restricts the cleaner threads" if is_held_back else help_),
        )
    for name in _names(done):
        yield from _one_log_too_slow(name, done, cleaner)


def _one_log_too_slow(name: TopicPartition, done: Sequence[CleaningRun], cleaner: CleanerFacts) -> Iterator[Advice]:
    own = [run for run in done if run.name == name]
    span_ms = _span_ms(own)
    if not span_ms or cleaner.threads == 1:
        return
    seconds = sum(run.seconds for run in own)
    if seconds * 1000 < BUSY * span_ms:
        return
    appended = sum(run.indexed_bytes for run in own[1:]) * 1000 / max(1, own[-1].at_ms - own[0].at_ms)
    cleaned = sum(run.indexed_bytes for run in own) / max(seconds, 1e-9)
    text = (
        f"{appended / 2**20:.2f} MB/s of dirty data arrive, a pass cleans {cleaned / 2**20:.2f} MB/s, and a log has "
        "one thread; clean less often (a higher ratio), or give the topic more partitions"
    )
    yield Advice(rule="log-outruns-its-thread", partition=name, setting="min.cleanable.dirty.ratio", text=text)


def _never_due(rules: PartitionRules) -> str | None:
    retention_ms = rules.log_limits.ms
    if retention_ms is None or rules.min_compaction_lag_ms < retention_ms:
        return None
    return (
        f"retention.ms={format_ms(retention_ms)} expires records before "
        f"min.compaction.lag.ms={format_ms(rules.min_compaction_lag_ms)} allows their compaction: "
        "the cleaner never compacts the topic"
    )


def _never_rolls(facts: LogFacts) -> str | None:
    rules = facts.rules
    is_stuck = facts.closed_bytes == 0 and facts.active_bytes > 0 and facts.quiet_ms >= DAY_MS
    if not is_stuck or rules.segment_ms <= facts.quiet_ms:
        return None
    return (
        f"all {facts.active_bytes} bytes are in the active segment, nothing was appended for "
        f"{format_ms(facts.quiet_ms)}, and segment.ms={format_ms(rules.segment_ms)} rolls it later still: nothing "
        "is cleaned until then; lower segment.ms or max.compaction.lag.ms, or run 'tiered compact --roll'"
    )


def _idle_passes(lag_ms: int | None, runs: Sequence[CleaningRun]) -> str | None:
    """Return advice if forced passes, which delay other logs, gained almost nothing; else None."""
    if lag_ms is None or len(runs) < RUNS_MIN:
        return None
    if any(run.delay_ms == 0 or run.size_reduction >= GAIN_MIN for run in runs):
        return None
    return (
        f"max.compaction.lag.ms={format_ms(lag_ms)} forced the last {RUNS_MIN} passes, which made the log "
        f"less than {GAIN_MIN:.0%} smaller; raise it for this topic"
    )


def _names(runs: Sequence[CleaningRun]) -> list[TopicPartition]:
    return sorted({run.name for run in runs})


def _span_ms(runs: Sequence[CleaningRun]) -> float:
    is_backwards = any(later.at_ms < earlier.at_ms for earlier, later in pairwise(runs))
    if is_backwards or len({run.at_ms for run in runs}) < RUNS_MIN:
        return 0.0
    span_ms = max(run.at_ms + run.seconds * 1000 for run in runs) - runs[0].at_ms
    return span_ms if span_ms >= SPAN_MIN_MS else 0.0
