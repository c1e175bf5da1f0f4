"""Properties of the policies over random partitions.

The remote prefix is drawn first: drawing the state of each segment evenly would hardly ever give a long tiered
prefix."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.compaction import first_dirty_offset, tombstones_below
from policies.copy_lag import are_uploads_held, copy_due_since_ms, uncopied
from policies.decisions import (
    Action,
    AdvanceCleanedOffset,
    AdvanceLogStart,
    BuildView,
    CleanLog,
    Code,
    CopySegment,
    Decision,
    DisableTier,
    DropLocal,
    ExpirePage,
    ExpireRemote,
    ReplaceRemote,
)
from policies.invariants import violations
from policies.plan import deferrals, plan_partition
from policies.retention import deletions, expirations, local_drops, local_expirations, page_to_know
from policies.rules import ALL_DAY, DailyWindow, PartitionRules, Pause
from policies.snapshot import Coverage, PartitionSnapshot
from policies.tiering import copies, copy_deferrals
from remote.manifest.manifest import PendingDelete
from remote.manifest.manifest_page import Rows, encode_page
from remote.manifest.view import DEFAULT_VIEW, CompactedView, ViewFailure, ViewRun
from remote.segment_entry import SegmentEntry, SegmentState

NOW = 10_000
LIMITS = st.none() | st.integers(0, 3_000)
_NONE = dict.fromkeys(("records_in", "records_out", "bytes_in", "bytes_out"), 0)
RUN = ViewRun(started_ms=0, took_ms=0, from_offset=0, upto_offset=0, **_NONE)

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work shares the machine
WINDOWS = st.builds(DailyWindow, start_ms=st.integers(0, 2 * NOW), end_ms=st.integers(2 * NOW + 1, 3 * NOW))
WINDOWS |= st.builds(DailyWindow, start_ms=st.integers(NOW + 1, 2 * NOW), end_ms=st.integers(0, NOW))
rules = st.builds(
    PartitionRules,
    cleanup_delete=st.booleans(),
    cleanup_compact=st.booleans(),
    retention_ms=LIMITS,
    retention_bytes=LIMITS,
    local_retention_ms=LIMITS,
    local_retention_bytes=LIMITS,
    segment_ms=st.integers(1, 3_000),
    copy_disabled=st.sampled_from([False, False, False, True]),
    gives_up_remote=st.sampled_from([False] * 9 + [True]),
    copy_lag_ms=st.just(0) | LIMITS,
    copy_lag_bytes=LIMITS,
    copy_window=st.just(ALL_DAY) | WINDOWS,
    delete_grace_ms=st.integers(0, 3_000),
    file_delete_delay_ms=st.integers(0, 3_000),
    min_cleanable_dirty_ratio=st.floats(0, 1),
    min_compaction_lag_ms=st.just(0) | st.integers(0, 3_000),
    max_compaction_lag_ms=LIMITS,
    delete_retention_ms=st.integers(0, 3_000),
    recompaction_min_reduction=st.floats(0, 1),
    recompaction_min_saved_bytes=st.integers(0, 500),
    view_threshold_bytes=st.none() | st.integers(1, 1_000),
    view_retain_null_key=st.booleans(),
    view_empty_value_deletes=st.booleans(),
    view_buffer_bytes=st.integers(1, 1_000),
).map(lambda drawn: replace(drawn, copy_disabled=drawn.copy_disabled or drawn.gives_up_remote))


def entry(
    base: int,
    following: int,
    size: int,
    age: int | None,
    state: SegmentState,
    copy: int = 0,
    committed_age: int = 0,
) -> SegmentEntry:
    return SegmentEntry(
        ulid=f"u{base}-{copy}",
        base_offset=base,
        next_offset=following,
        size_bytes=size,
        stored_bytes=size,
        record_count=0,
        max_timestamp_ms=None if age is None else NOW - age,
        min_timestamp_ms=None,
        epochs=((0, base),),
        data_crc32c=0,
        data_key=f"data/{base}-{copy}.log",
        indexes_key=f"data/{base}-{copy}.indexes",
        indexes_bytes=1,
        indexes={},
        committed_ms=NOW - (committed_age if age is None else 0),
        state=state,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> PartitionSnapshot:
    """A random partition: tiered prefix, its part that is still local, local-only segments, and unfinished entries."""
    ages = st.none() | st.integers(-100, 3_000)
    spans = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 900), ages), max_size=8)
    tiered, only_local = draw(spans), draw(spans)
    cuts = [draw(st.integers(0, 3))]
    for width, _, _ in (*tiered, *only_local):
        cuts.append(cuts[-1] + width)
    facts = [*tiered, *only_local]
    committed_age = draw(st.integers(0, 3_000))
    entries = [
        replace(
            entry(cuts[at], cuts[at + 1], max(1, size_bytes), age, _FINISHED, committed_age=committed_age),
            cleaned_through=draw(st.none() | st.sampled_from(cuts)),
        )
        for at, (_, size_bytes, age) in enumerate(tiered)
    ]
    entries = [one for one in entries if draw(st.integers(0, 19)) > 0]  # sometimes a gap
    strays = draw(
        st.lists(st.tuples(st.integers(0, len(facts)), st.sampled_from(sorted(set(SegmentState) - {_FINISHED}))))
    )
    entries += [
        entry(cuts[at], cuts[at] + 3, 10_000, 3_000, state, copy + 1)
        for copy, (at, state) in enumerate(strays)
        if draw(st.booleans())
    ]
    first_local = draw(st.integers(0, len(tiered)))
    segments = [
        SegmentInfo(
            base_offset=cuts[at],
            next_offset=cuts[at + 1],
            size_bytes=facts[at][1] // draw(st.sampled_from([1, 1, 1, 3])),  # sometimes cleaned again
            max_timestamp_ms=None if facts[at][2] is None else NOW - facts[at][2],
            is_active=False,
            modified_ms=NOW - draw(st.integers(-10, 3_000)),
            first_timestamp_ms=draw(st.none() | st.integers(NOW - 3_000, NOW)),
        )
        for at in range(first_local, len(facts))
    ]
    active_records = draw(st.integers(0, 4))
    segments.append(
        SegmentInfo(
            base_offset=cuts[-1],
            next_offset=cuts[-1] + active_records,
            size_bytes=active_records * 50,
            max_timestamp_ms=NOW - draw(st.integers(-100, 3_000)) if active_records else None,
            is_active=True,
            modified_ms=NOW,
        )
    )
    end = segments[-1].next_offset
    bases = [segment.base_offset for segment in segments]
    return PartitionSnapshot(
        partition=TopicPartition("orders", 0),
        rules=draw(rules),
        now_ms=NOW,
        log_start_offset=min(end, draw(st.just(cuts[0]) | st.integers(cuts[0], end))),
        next_offset=end,
        stable_offset=draw(st.just(end) | st.integers(0, end)),
        segments=tuple(segments),
        is_tiered=draw(st.sampled_from([True, True, True, False])),
        remote=tuple(sorted(entries, key=lambda one: one.base_offset)),
        pending_deletes=draw(_unlinked([one.data_key for one in entries])),
        cleaner_offset=draw(st.none() | st.integers(0, end + 2) | st.sampled_from(cuts)),
        cleaner_reach=draw(st.just(0) | st.integers(0, end)),
        shrunk=frozenset(draw(st.just([]) | st.lists(st.sampled_from(bases), max_size=2))),
        views=draw(_views([one.next_offset for one in entries])),
        copying=frozenset(draw(st.just([]) | st.lists(st.sampled_from(bases), max_size=1))),
        may_clean=draw(st.sampled_from([True, True, True, False])),
        paused=draw(st.none() | st.none() | st.builds(Pause, since_ms=st.none(), reason=st.just("a test"))),
    )


_FINISHED = SegmentState.COPY_FINISHED
_CLEANING = CleanLog(first_dirty_offset=0, upto_offset=1, size_bytes=1, reason="by hand")


def _views(ends: list[int]) -> st.SearchStrategy[tuple[CompactedView, ...]]:
    """No view, or the default view: built or not, with or without a failed last run."""
    failures = st.none() | st.builds(ViewFailure, failed_ms=st.sampled_from([NOW, -NOW * NOW]), error=st.just("no"))
    built = st.builds(
        CompactedView,
        name=st.just(DEFAULT_VIEW),
        horizon_offset=st.sampled_from([0, *ends]),
        last_run=st.just(RUN),
        failure=failures,
    )
    never = st.builds(CompactedView, name=st.just(DEFAULT_VIEW), failure=failures)
    return st.just(()) | st.tuples(built) | st.tuples(never)


def _unlinked(row_keys: list[str]) -> st.SearchStrategy[tuple[PendingDelete, ...]]:
    """Pending deletes. One of them may have the key of an entry, which must never happen."""
    one = st.builds(
        PendingDelete,
        key=st.sampled_from(["data/gone-1.log", "data/gone-2.log", *row_keys]),
        size_bytes=st.integers(0, 99),
        unlinked_ms=st.integers(NOW - 3_000, NOW + 100),
        epoch=st.integers(0, 3),
    )
    return st.lists(one, max_size=3, unique_by=lambda pending_deletes: pending_deletes.key).map(tuple)


def retained(taken: PartitionSnapshot, decided: list[Decision]) -> dict[int, int]:
    """The number of copies of each offset from the advanced log start on, counted offset by offset."""
    start = max([taken.log_start_offset, *(one.offset for one in decided if isinstance(one, AdvanceLogStart))])
    dropped = {one.base_offset for one in decided if isinstance(one, DropLocal)}
    gone = {one.ulid for one in decided if isinstance(one, ExpireRemote)}
    ranges = [(one.base_offset, one.next_offset) for one in taken.segments if one.base_offset not in dropped]
    ranges += [
        (one.base_offset, one.next_offset) for one in taken.remote if one.state is _FINISHED and one.ulid not in gone
    ]
    counts: dict[int, int] = {}
    for base_offset, next_offset in ranges:
        for offset in range(max(base_offset, start), next_offset):
            counts[offset] = counts.get(offset, 0) + 1
    return {offset: counts.get(offset, 0) for offset in range(start, taken.next_offset)}


@CALM
@given(snapshots())
def test_a_plan_violates_no_invariant(taken: PartitionSnapshot) -> None:
    assert violations(taken, plan_partition(taken)) == []


@CALM
@given(snapshots(), st.data())
def test_no_prefix_of_a_plan_loses_a_retained_offset(taken: PartitionSnapshot, data: st.DataObject) -> None:
    decided = plan_partition(taken)
    prefix = decided[: data.draw(st.integers(0, len(decided)))]
    empty = {
        offset
        for segment in taken.segments
        if segment.is_empty
        for offset in range(segment.base_offset, segment.next_offset)
    }
    before = retained(taken, [])
    for offset, copies_left in retained(taken, prefix).items():
        assert copies_left > 0 or before[offset] == 0 or offset in empty


@CALM
@given(snapshots())
def test_the_active_segment_is_neither_copied_nor_dropped(taken: PartitionSnapshot) -> None:
    active = taken.segments[-1].base_offset
    for decision in plan_partition(taken):
        if isinstance(decision, CopySegment | DropLocal):
            assert decision.base_offset != active


@CALM
@given(snapshots())
def test_a_compacted_topic_copies_only_below_the_cleaner_checkpoint(taken: PartitionSnapshot) -> None:
    for decision in copies(replace(taken, rules=replace(taken.rules, cleanup_compact=True))):
        assert taken.cleaner_offset is not None
        assert decision.next_offset <= taken.cleaner_offset


@CALM
@given(snapshots())
def test_unfinished_entries_do_not_change_a_plan(taken: PartitionSnapshot) -> None:
    finished = tuple(one for one in taken.remote if one.state is _FINISHED)
    without = replace(taken, remote=finished, pending_deletes=())
    assert plan_partition(without) == plan_partition(replace(taken, pending_deletes=()))


@CALM
@given(snapshots(), st.integers(0, 3_000))
def test_decisions_to_drop_expire_or_delete_stay_valid_later(taken: PartitionSnapshot, later_ms: int) -> None:
    later = replace(taken, now_ms=taken.now_ms + later_ms)
    for policy in (local_drops, expirations):
        now_bases = [decision.base_offset for decision in policy(taken)]
        assert [decision.base_offset for decision in policy(later)][: len(now_bases)] == now_bases
    assert {decision.key for decision in deletions(taken)} <= {decision.key for decision in deletions(later)}


@CALM
@given(snapshots())
def test_one_more_committed_entry_never_prevents_a_drop(taken: PartitionSnapshot) -> None:
    copied = copies(taken)
    if not copied:
        return
    first = copied[0]
    more = replace(
        taken, remote=(*taken.remote, entry(first.base_offset, first.next_offset, first.size_bytes, 0, _FINISHED, 99))
    )
    assert len(local_drops(more)) >= len(local_drops(taken))


@CALM
@given(snapshots())
def test_copies_are_in_ascending_order_without_overlap(taken: PartitionSnapshot) -> None:
    reached = max(taken.remote_next_offset or 0, 0)
    for decision in copies(taken):
        assert decision.base_offset >= reached
        reached = decision.next_offset


@CALM
@given(snapshots())
def test_copies_omit_no_record(taken: PartitionSnapshot) -> None:
    """Every closed record between the end of the remote tier or the log start and the last copy is copied."""
    copied = copies(taken)
    if not copied:
        return
    start = max(taken.remote_next_offset or 0, taken.log_start_offset)
    last = copied[-1].next_offset
    due = [one.base_offset for one in taken.closed if not one.is_empty and start < one.next_offset <= last]
    assert [one.base_offset for one in copied] == due


@CALM
@given(snapshots(), st.data())
def test_a_plan_with_a_missing_copy_or_with_a_clean_before_copies_is_a_violation(
    taken: PartitionSnapshot, data: st.DataObject
) -> None:
    copied = copies(taken)
    if len(copied) < 2:
        return
    left_out = data.draw(st.integers(0, len(copied) - 2))
    assert violations(taken, copied) == []
    assert violations(taken, copied[:left_out] + copied[left_out + 1 :]) != []
    assert violations(taken, [_CLEANING, *copied]) != []


@CALM
@given(snapshots())
def test_a_drop_is_a_violation_if_one_retained_offset_has_no_entry(taken: PartitionSnapshot) -> None:
    oldest = taken.segments[0]
    if oldest.is_active or oldest.is_empty:
        return
    retained_offsets = set(range(max(oldest.base_offset, taken.log_start_offset), oldest.next_offset))
    finished = [one for one in taken.remote if one.state is _FINISHED]
    held = {offset for one in finished for offset in range(one.base_offset, one.next_offset)}
    drop = DropLocal(base_offset=oldest.base_offset, next_offset=oldest.next_offset, size_bytes=0, reason="by hand")
    assert (violations(taken, [drop]) == []) == (retained_offsets <= held)


@CALM
@given(snapshots())
def test_no_plan_contains_both_a_clean_and_copies(taken: PartitionSnapshot) -> None:
    kinds = {type(decision) for decision in plan_partition(taken)}
    assert not {CleanLog, CopySegment} <= kinds


@CALM
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6))), st.integers(0, 40), st.integers(0, 12))
def test_coverage_contains_a_range_exactly_if_it_contains_every_offset(
    drawn: list[tuple[int, int]], base_offset: int, width: int
) -> None:
    held = {offset for base, length in drawn for offset in range(base, base + length)}
    coverage = Coverage.of((base, base + length) for base, length in drawn)
    assert coverage.holds(base_offset, base_offset + width) == (set(range(base_offset, base_offset + width)) <= held)
    assert coverage.next_offset == (max(held) + 1 if held else None)


@CALM
@given(snapshots())
def test_no_local_segment_expires_while_copies_are_enabled(taken: PartitionSnapshot) -> None:
    if taken.is_copying_on:
        assert local_expirations(taken, local_drops(taken), expirations(taken)) == []


@CALM
@given(snapshots())
def test_repeated_plans_end_with_an_empty_plan(taken: PartitionSnapshot) -> None:
    """Each plan enables something in the next one (a copy enables a drop, a drop nothing), so a few plans must
    suffice."""
    for _ in range(12):
        decided = [one for one in plan_partition(taken) if type(one).__name__ not in ("RollActive", "CleanLog")]
        if not decided:
            return
        assert violations(taken, decided) == []
        taken = applied(taken, decided)
    raise AssertionError(f"still busy: {decided}")


def applied(taken: PartitionSnapshot, decided: list[Decision]) -> PartitionSnapshot:
    """The snapshot after `decided`, for decisions that need neither disk nor store."""
    start = max([taken.log_start_offset, *(one.offset for one in decided if isinstance(one, AdvanceLogStart))])
    dropped = {one.base_offset for one in decided if isinstance(one, DropLocal)}
    gone = {one.ulid for one in decided if isinstance(one, ExpireRemote)}
    new_rows = [
        entry(one.base_offset, one.next_offset, one.size_bytes, 100, _FINISHED, 7)
        for one in decided
        if isinstance(one, CopySegment)
    ]
    gone |= {ulid for one in decided if isinstance(one, ReplaceRemote) for ulid in one.ulids}
    new_rows += [
        replace(
            entry(one.base_offset, one.next_offset, one.size_bytes, 100, _FINISHED, 8), cleaned_through=taken.clean_cut
        )
        for one in decided
        if isinstance(one, ReplaceRemote)
    ]
    raised = {
        ulid: one.cleaned_through for one in decided if isinstance(one, AdvanceCleanedOffset) for ulid in one.ulids
    }
    kept = [
        replace(one, cleaned_through=max(raised.get(one.ulid, 0), one.cleaned_through or 0))
        for one in taken.remote
        if one.ulid not in gone
    ]
    views = [
        CompactedView(name=one.view, horizon_offset=one.upto_offset, last_run=RUN)
        for one in decided
        if isinstance(one, BuildView)
    ]
    tier_disabled = [one.offset for one in decided if isinstance(one, DisableTier)]
    if tier_disabled:
        start = max(start, *tier_disabled)
        return replace(taken, log_start_offset=start, remote=(), views=(), tier_disabled=taken.committed)
    return replace(
        taken,
        log_start_offset=start,
        tier_disabled=tuple(
            one for one in taken.tier_disabled if isinstance(one, SegmentEntry) and one.ulid not in gone
        ),
        segments=tuple(one for one in taken.segments if one.base_offset not in dropped),
        remote=tuple(sorted((*kept, *new_rows), key=lambda one: one.base_offset)),
        pending_deletes=(),
        views=tuple(views) or taken.views,
    )


def _in_pages(taken: PartitionSnapshot, sizes: list[int]) -> tuple[PartitionSnapshot, dict[str, Rows]]:
    """The same partition with its oldest finished entries in unread pages, and the entries by page key."""
    known, pages, entries_of = list(taken.remote), [], {}
    for number, size in enumerate(sizes):
        run = tuple(known[:size])
        if len(run) < size or any(each.state is not _FINISHED for each in run):
            break
        page = encode_page(run, 1, f"{number:026d}")[0]
        pages.append(page)
        entries_of[page.key] = run
        del known[:size]
    return replace(taken, remote=tuple(known), pages=tuple(pages)), entries_of


def _row_by_row(taken: PartitionSnapshot, entries_of: dict[str, Rows]) -> list[Decision | str]:
    """The plan by entries instead of pages and without replacements.
    Entries in pages are never replaced, because their local segments were dropped, as a rule."""
    told: list[Decision | str] = []
    for one in plan_partition(taken):
        match one:
            case ReplaceRemote() | AdvanceCleanedOffset():
                pass
            case ExpirePage():
                told += [entry.ulid for entry in entries_of[one.key]]
            case ExpireRemote():
                told.append(one.ulid)
            case _:
                told.append(one)
    return told


@CALM
@given(snapshots(), st.lists(st.integers(1, 3), max_size=5))
def test_a_plan_for_entries_in_pages_equals_the_plan_for_known_entries(
    full: PartitionSnapshot, sizes: list[int]
) -> None:
    # An entry never names a pending delete, and in an unread page this would be invisible.
    full = replace(full, pending_deletes=tuple(one for one in full.pending_deletes if one.key not in full.named_keys))
    # The bytes above a view count whole pages, so a threshold may be reached sooner.
    full = replace(full, rules=replace(full.rules, view_threshold_bytes=None))
    taken, entries_of = _in_pages(full, sizes)
    # Copies are made oldest first and pages have the oldest entries, so a running copy is above them.
    copying = frozenset(one for one in full.copying if all(one >= page.next_offset for page in taken.pages))
    full, taken = replace(full, copying=copying), replace(taken, copying=copying)
    assert violations(taken, plan_partition(taken)) == []
    while (page := page_to_know(taken)) is not None:
        at = len(taken.known_oldest())
        remote = (*taken.remote[:at], *entries_of[page.key], *taken.remote[at:])
        pages = tuple(each for each in taken.pages if each is not page)
        taken = replace(taken, remote=remote, pages=pages, known_pages=(*taken.known_pages, page))
    assert violations(taken, plan_partition(taken)) == []
    assert _row_by_row(taken, entries_of) == _row_by_row(full, entries_of)
    assert (taken.committed_count, taken.committed_bytes) == (full.committed_count, full.committed_bytes)
    assert taken.coverage == full.coverage
    bounds = [tombstones_below(each, is_bucket_known=True) for each in (taken, full)]
    assert (bounds[0] is None) == (bounds[1] is None)
    assert (bounds[0] or 0) <= (bounds[1] or 0), "a page must give the lowest bound of its entries"
    if bounds[0] is not None:
        assert all(_may_lose_a_tombstone(full, offset) for offset in range(bounds[0]))


def _may_lose_a_tombstone(taken: PartitionSnapshot, offset: int) -> bool:
    """Whether no older record of the key of a tombstone at `offset` is readable any more (I5)."""
    readable = (each for each in taken.committed if each.next_offset > taken.log_start_offset)
    is_clean = all(each.base_offset > offset or (each.cleaned_through or 0) > offset for each in readable)
    return is_clean and all(view.is_built and view.horizon_offset > offset for view in taken.views)


@CALM
@given(snapshots())
def test_the_tombstone_bound_is_the_highest_offset_that_hides_no_older_record(taken: PartitionSnapshot) -> None:
    bound = tombstones_below(taken, is_bucket_known=True)
    upto = 1000 if bound is None else bound
    assert all(_may_lose_a_tombstone(taken, offset) for offset in range(upto))
    assert bound is None or not _may_lose_a_tombstone(taken, bound)


@CALM
@given(snapshots())
def test_every_segment_without_a_copy_is_planned_or_deferred_and_never_both(taken: PartitionSnapshot) -> None:
    decided = plan_partition(taken)
    waiting = deferrals(taken, decided)
    for action, kind in ((Action.COPY, CopySegment), (Action.DROP, DropLocal)):
        planned = [each.base_offset for each in decided if isinstance(each, kind)]
        late = [each.base_offset for each in waiting if each.action is action]
        assert len(set(late)) == len(late)
        assert not set(planned) & set(late)
    planned = [each.base_offset for each in decided if isinstance(each, CopySegment)]
    late = [each.base_offset for each in waiting if each.action is Action.COPY]
    wanted = {each.base_offset for each in uncopied(taken)}
    if taken.is_tiered:
        assert wanted == {*planned, *late} - {taken.segments[-1].base_offset}
    else:
        assert not late


@CALM
@given(snapshots())
def test_every_dirty_segment_is_cleaned_or_deferred(taken: PartitionSnapshot) -> None:
    decided = plan_partition(replace(taken, tier_disabled=()))
    if not taken.rules.cleanup_compact or taken.rules.gives_up_remote:
        return
    upto = max((each.upto_offset for each in decided if isinstance(each, CleanLog)), default=0)
    late = {each.base_offset for each in deferrals(taken, decided) if each.action is Action.CLEAN}
    dirty_from = first_dirty_offset(taken)
    for each in taken.closed:
        if each.next_offset > dirty_from and not each.is_empty:
            assert (each.next_offset <= upto) != (each.base_offset in late)


@CALM
@given(snapshots())
def test_a_copy_lag_deferral_ends_exactly_at_its_time(taken: PartitionSnapshot) -> None:
    by_lag = [each for each in copy_deferrals(taken) if each.code is Code.COPY_LAG]
    for each in by_lag:
        assert each.until_ms is None or each.until_ms > taken.now_ms
        for moment, is_late in ((each.until_ms or 1) - 1, True), (each.until_ms, False):
            if each.until_ms is not None and moment is not None and moment >= taken.now_ms:
                then = copy_deferrals(replace(taken, now_ms=moment))
                codes = [one.code for one in then if one.base_offset == each.base_offset]
                assert (codes == [Code.COPY_LAG]) == is_late


@CALM
@given(snapshots())
def test_a_copy_due_since_a_time_was_deferred_before_that_time(taken: PartitionSnapshot) -> None:
    since = copy_due_since_ms(taken)
    if since is None:
        return
    assert since <= taken.now_ms
    oldest = uncopied(taken)[0]
    late = {each.base_offset: each.code for each in copy_deferrals(taken)}
    assert late.get(oldest.base_offset) is not Code.COPY_LAG or are_uploads_held(taken), "due, and outside the window"
    is_plain = oldest.base_offset not in late and taken.rules.copy_lag_bytes is None
    if is_plain and oldest.modified_ms < since:  # no rule applies before the segment was closed
        before = copy_deferrals(replace(taken, now_ms=since - 1))
        assert [one.code for one in before if one.base_offset == oldest.base_offset] == [Code.COPY_LAG]


def test_every_field_of_the_rules_gets_different_values() -> None:
    drawn: dict[str, set[object]] = {each.name: set() for each in fields(PartitionRules)}

    @settings(max_examples=200, database=None, deadline=None)
    @given(rules)
    def look(taken: PartitionRules) -> None:
        for name, values in drawn.items():
            values.add(getattr(taken, name))

    look()
    assert [name for name, values in drawn.items() if len(values) < 2] == []
