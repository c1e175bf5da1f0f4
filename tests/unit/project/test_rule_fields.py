"""Every field of the rules has a setting and is drawn, simulated, linted and documented, or states why not.

The property tests check that each field is drawn (`tests/property/test_policies.py`).
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from policies.cost.simulation import Workload, simulate
from policies.rules import DAY_MS, DailyWindow, PartitionRules
from tiered.config.config import resolve_rules
from tiered.health.lint import lint_place

DOCS = Path(__file__).parents[3] / "docs"
NAMES = [each.name for each in fields(PartitionRules)]

# Field -> its setting, a value other than the default, an invalid value.
SETTINGS = {
    "cleanup_delete": ("cleanup.policy", "compact", "shred"),
    "cleanup_compact": ("cleanup.policy", "compact", "shred"),
    "retention_ms": ("retention.ms", "1h", "soon"),
    "retention_bytes": ("retention.bytes", "1MiB", "much"),
    "local_retention_ms": ("local.retention.ms", "1h", "soon"),
    "local_retention_bytes": ("local.retention.bytes", "1MiB", "much"),
    "segment_ms": ("segment.ms", "1h", "soon"),
    "copy_disabled": ("remote.log.copy.disable", "true", "perhaps"),
    "copy_lag_ms": ("remote.copy.lag.ms", "1h", "soon"),
    "copy_lag_bytes": ("remote.copy.lag.bytes", "1MiB", "much"),
    "copy_window": ("remote.copy.window", "22:00-06:00", "at night"),
    "delete_grace_ms": ("remote.log.delete.grace.ms", "1h", "soon"),
    "file_delete_delay_ms": ("file.delete.delay.ms", "1h", "soon"),
    "min_cleanable_dirty_ratio": ("min.cleanable.dirty.ratio", "0.1", "2"),
    "min_compaction_lag_ms": ("min.compaction.lag.ms", "1h", "soon"),
    "max_compaction_lag_ms": ("max.compaction.lag.ms", "1h", "soon"),
    "delete_retention_ms": ("delete.retention.ms", "1h", "soon"),
    "recompaction_min_reduction": ("remote.recompaction.min.reduction.ratio", "0.1", "2"),
    "recompaction_min_saved_bytes": ("remote.recompaction.min.saved.bytes", "1", "much"),
    "view_threshold_bytes": ("compaction.view.threshold", "1MiB", "much"),
    "view_retain_null_key": ("compaction.view.retain.null.key", "true", "perhaps"),
    "view_empty_value_deletes": ("compaction.view.empty.value.deletes", "true", "perhaps"),
    "view_buffer_bytes": ("log.cleaner.dedupe.buffer.size", "64MiB", "much"),
    # A tier is disabled by remote.storage.enable=false together with this setting (KIP-950).
    "gives_up_remote": ("remote.log.delete.on.disable", "true", "perhaps"),
}
COMPACTED = {"max_compaction_lag_ms"}  # applies to compacted topics only

HOUR = DAY_MS // 24
STREAM = Workload(batch_bytes=1000, batch_ms=60_000, segment_bytes=10_000, compacted_share=0.5, tick_ms=60_000)
SLOW = replace(STREAM, batch_ms=2 * HOUR)
BASE = PartitionRules(retention_ms=12 * HOUR, local_retention_ms=6 * HOUR, delete_grace_ms=HOUR)
# Simulated field -> a stream, the rules, and another value that changes the simulation.
SIMULATED: dict[str, tuple[Workload, PartitionRules, object]] = {
    "cleanup_delete": (STREAM, BASE, False),
    "cleanup_compact": (STREAM, BASE, True),
    "retention_ms": (STREAM, BASE, 8 * HOUR),
    "retention_bytes": (STREAM, BASE, 100_000),
    "local_retention_ms": (STREAM, BASE, HOUR),
    "local_retention_bytes": (STREAM, BASE, 50_000),
    "segment_ms": (SLOW, BASE, HOUR),
    "copy_disabled": (STREAM, BASE, True),
    "copy_lag_ms": (STREAM, BASE, HOUR),
    "copy_lag_bytes": (STREAM, replace(BASE, copy_lag_ms=None), 30_000),
    "copy_window": (STREAM, BASE, DailyWindow(start_ms=HOUR, end_ms=2 * HOUR)),
    "delete_grace_ms": (STREAM, BASE, 2 * HOUR),
    "min_cleanable_dirty_ratio": (STREAM, replace(BASE, cleanup_compact=True), 0.1),
}
# The fields of the rules that do not change a simulation, with the reason. All other fields do.
NOT_SIMULATED = {
    "gives_up_remote": "a tier that is being disabled is not simulated",
    "file_delete_delay_ms": "deleted files stay on the disk for seconds, and disk bytes are averages over hours",
    "delete_retention_ms": "tombstones are part of the measured share that compaction leaves",
    **dict.fromkeys(
        ("min_compaction_lag_ms", "max_compaction_lag_ms"), "a cleaner pass is simulated from its dirty share only"
    ),
    "recompaction_min_reduction": "segments that are in the bucket are not compacted again",
    "recompaction_min_saved_bytes": "segments that are in the bucket are not compacted again",
    **dict.fromkeys(
        ("view_threshold_bytes", "view_retain_null_key", "view_empty_value_deletes", "view_buffer_bytes"),
        "views are not simulated",
    ),
}


def test_tables_of_settings_and_simulations_name_every_field() -> None:
    assert set(SETTINGS) == set(NAMES)
    assert {*SIMULATED, *NOT_SIMULATED} == set(NAMES)
    assert not set(SIMULATED) & set(NOT_SIMULATED)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"gives_up_remote"}))
def test_a_field_follows_its_setting(name: str) -> None:
    key, value, _ = SETTINGS[name]
    beside = {"cleanup.policy": "compact"} if name in COMPACTED else {}
    before, after = resolve_rules(beside), resolve_rules({**beside, key: value})
    assert getattr(before, name) != getattr(after, name)


@pytest.mark.parametrize("name", sorted(SIMULATED))
def test_a_field_changes_the_simulation(name: str) -> None:
    workload, rules, value = SIMULATED[name]
    one, other = (
        simulate(workload, each, window_ms=DAY_MS)
        for each in (rules, replace(rules, **{name: value}))  # type: ignore[arg-type]
    )
    assert one != other


@pytest.mark.parametrize("name", sorted(NOT_SIMULATED))
def test_field_that_is_not_simulated_changes_no_result_and_is_documented(name: str) -> None:
    rules = replace(BASE, cleanup_compact=True)
    value = getattr(rules, name)
    other = replace(rules, **{name: not value if isinstance(value, bool) else HOUR})  # type: ignore[arg-type]
    assert simulate(STREAM, rules, window_ms=DAY_MS) == simulate(STREAM, other, window_ms=DAY_MS)
    told = (DOCS / "explanation" / "cost-model.md").read_text()
    (line,) = [each for each in told.splitlines() if each.startswith("|") and f"`{SETTINGS[name][0]}`" in each]
    assert NOT_SIMULATED[name] in line


@pytest.mark.parametrize("name", NAMES)
def test_invalid_value_of_a_field_is_a_lint_finding(name: str, tmp_path: Path) -> None:
    key, _, wrong = SETTINGS[name]
    file = tmp_path / "tiered.toml"
    file.write_text(f'[local]\ndirs = ["data"]\n[defaults]\n"{key}" = "{wrong}"\n')
    found = lint_place(str(file))
    assert [each.key for each in found] == [key]


@pytest.mark.parametrize("name", NAMES)
def test_the_setting_of_a_field_is_documented(name: str) -> None:
    reference = (DOCS / "reference" / "settings.md").read_text()
    assert re.search(rf"^\| `{re.escape(SETTINGS[name][0])}`", reference, re.MULTILINE)
