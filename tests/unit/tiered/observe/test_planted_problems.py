"""Each alert fires on the metrics of a daemon with its planted problem only, and stops after the runbook's fix.

The clock is virtual: a day passes at once. The disk, the daemon, its metrics and the commands are real.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from bucket_truth import assert_sound
from fetched import Missing, promtool
from monitoring_pages import metric_names, runbook_commands
from planted_problems import SCENES, Scene
from promql import evaluate
from run_profile import one_of_each
from watched_node import DAY, Scrape, WatchedNode, watched_node

from tiered.observe.monitoring_files import ALERTS, Limits, alert_rules

pytestmark = pytest.mark.xdist_group("planted")  # each scene runs once for its two tests
ALERTS_BY_NAME = {alert.name: alert for alert in ALERTS}
OF_THE_SYSTEM = {"journalctl -u tiered", "timedatectl"}
WINDOW_S = 8 * 3600


@dataclass(frozen=True, slots=True)
class Played:
    """One scene: alerts that fired, output of the runbook's "Look" commands, samples before and after the fix."""

    at_first: set[str]
    planted: set[str]
    mended: set[str]
    told: dict[str, tuple[int, str]]
    scrapes: tuple[list[Scrape], list[Scrape]]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scene], Played]:
    known: dict[int, Played] = {}

    def play(scene: Scene) -> Played:
        if id(scene) not in known:
            with pytest.MonkeyPatch.context() as patch, watched_node(tmp_path_factory.mktemp("node"), patch) as node:
                known[id(scene)] = _played(scene, node)
        return known[id(scene)]

    return play


def _played(scene: Scene, node: WatchedNode) -> Played:
    at_first = node.firing(scene.limits)
    scene.plant(node)
    planted, before = node.firing(scene.limits), node.since(WINDOW_S)
    told = {
        line: node.tiered(line) for line in runbook_commands(ALERTS_BY_NAME[scene.alert]) if line not in OF_THE_SYSTEM
    }
    scene.mend(node)
    assert node.worker.problem_lines() == []
    assert_sound(node.door.inner)
    return Played(at_first, planted, node.firing(scene.limits), told, (before, node.since(WINDOW_S)))


@pytest.mark.parametrize("scene", one_of_each(3, SCENES), ids=lambda scene: f"{scene.alert}{scene.plant.__name__}")
def test_alert_fires_on_its_planted_problem_and_stops_after_the_runbook_fix(
    scene: Scene, play: Callable[[Scene], Played]
) -> None:
    played = play(scene)
    assert (played.at_first, played.planted, played.mended) == (set(), {scene.alert} | scene.also, set())
    assert set(scene.told) <= set(played.told), "the runbook must contain each line that the scene names"
    for line, (code, text) in played.told.items():
        assert code in (0, 3, 4, 10), (line, text)
        assert "internal error" not in text
        assert scene.told.get(line, "") in text, line


def test_every_alert_has_a_planted_problem() -> None:
    assert {scene.alert for scene in SCENES} == set(ALERTS_BY_NAME)


@pytest.mark.parametrize(("members", "fires"), [({}, False), ({"abandoned": 2}, True), ({"another": 2}, False)])
def test_offsets_that_expired_fire_for_groups_with_members_only(members: dict[str, int], fires: bool) -> None:
    group = ("instance", "one:9464"), ("consumergroup", "abandoned")
    series = {
        "tiered_consumergroup_expired_offsets": {frozenset((*group, ("topic", "t"), ("partition", "0"))): [(0.0, 5.0)]},
        "tiered_consumergroup_members": {
            frozenset((("instance", "one:9464"), ("consumergroup", name))): [(0.0, float(members.get(name, 0)))]
            for name in ("abandoned", "another")
        },
    }
    assert bool(evaluate(ALERTS_BY_NAME["TieredGroupMeetsRetention"].expr, series, 0.0)) is fires


@pytest.mark.prometheus
@pytest.mark.deep("Prometheus over every planted problem")
@pytest.mark.parametrize("scene", one_of_each(3, SCENES), ids=lambda scene: f"{scene.alert}{scene.plant.__name__}")
def test_prometheus_fires_the_same_alerts_on_the_same_samples(
    scene: Scene, play: Callable[[Scene], Played], tmp_path: Path
) -> None:
    try:
        tool = promtool()
    except Missing as missing:
        pytest.skip(str(missing))
    played = play(scene)
    (tmp_path / "rules.yml").write_text(alert_rules(scene.limits))
    moments = zip(played.scrapes, (played.planted, played.mended), strict=True)
    tests = {"rule_files": ["rules.yml"], "tests": [_judged(scrapes, firing) for scrapes, firing in moments]}
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    words = [str(tool), "test", "rules", "tests.yml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _judged(scrapes: list[Scrape], firing: set[str]) -> dict[str, object]:
    """A test for `promtool` with time starting at 0 and one sample a minute. ``_`` means no sample."""
    begin_s = scrapes[0].at_s
    minutes = [round((each.at_s - begin_s) / 60) for each in scrapes]
    names = {name for alert in ALERTS for name in metric_names(alert.expr)}
    values: dict[str, list[str]] = {}
    for minute, scrape in zip(minutes, scrapes, strict=True):
        for (name, labels), value in scrape.values.items():
            if name in names:
                shifted = value - begin_s if name.endswith("_timestamp_seconds") else value
                text = ",".join(f"{key}={json.dumps(label)}" for key, label in sorted(labels))
                values.setdefault(f"{name}{{{text}}}", ["_"] * (minutes[-1] + 1))[minute] = f"{shifted:.6f}"
    fired = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)]
    asked = {
        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minutes[-1]}m",
        "exp_samples": fired,
    }
    series = [{"series": name, "values": " ".join(each)} for name, each in values.items()]
    return {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}


@pytest.mark.parametrize(
    "settings",
    [{"remote_copy_lag_ms": "6h", "local_retention_ms": "12h"}, {"min_compaction_lag_ms": "12h"}],
    ids=["a copy lag", "a cleaner that is not due"],
)
def test_configured_lag_fires_no_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    with watched_node(tmp_path / "node", monkeypatch) as node:
        node.configure(**settings)
        node.reload()
        topic = "orders" if "remote_copy_lag_ms" in settings else "prices"
        node.append(topic, 200)
        fired = set()
        for _ in range(2):
            node.pass_(80, every=10)
            fired |= node.firing(Limits())
        waiting = node.scrapes[-1].values["tiered_remote_copy_lag_segments", frozenset({("topic", topic)})]
    assert waiting > 1, "the topic must have closed segments that are not uploaded yet"
    assert fired == set()


@pytest.mark.parametrize("was_wrong", [False, True], ids=["the clock goes wrong", "a wrong clock is set right"])
@pytest.mark.parametrize("days", [30, -30])
def test_wrong_clock_neither_fires_nor_hides_the_alert_on_missing_maintenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, *, was_wrong: bool
) -> None:
    """Prometheus has its own, correct clock, while the clock of the machine is wrong or was corrected."""
    with watched_node(tmp_path / "node", monkeypatch) as node:
        if was_wrong:
            node.skew_ms = days * DAY
            node.restart()
            node.pass_(2)
        node.skew_ms = 0 if was_wrong else days * DAY
        node.pass_(40)
        assert node.worker.clock_guard is not None
        assert node.worker.clock_guard.off_ms == (-days if was_wrong else days) * DAY, (
            "the daemon must have noticed the wrong clock"
        )
        assert "TieredNoRounds" not in node.firing(Limits())
        node.pass_(40, works=False)
        assert "TieredNoRounds" in node.firing(Limits())


# -- the evaluator of these tests


def _series(
    *values: float, step_s: float = 60
) -> dict[str, dict[frozenset[tuple[str, str]], list[tuple[float, float]]]]:
    return {"m": {frozenset({("topic", "t")}): [(at * step_s, value) for at, value in enumerate(values)]}}


@pytest.mark.parametrize(
    ("expr", "values", "expected"),
    [
        ("sum(m)", (1, 2, 3), 3),
        ("m > 2 and m < 4", (3,), 3),
        ("m > 3 or m == 3", (3,), 3),
        ("m unless m == 3", (3,), None),
        ("2 * m - 1", (3,), 5),
        ("m / 0 > 1", (3,), float("inf")),
        ("increase(m[2m])", (0, 10, 20), 20),
        ("rate(m[2m])", (0, 10, 20), 20 / 120),
        ("increase(m[2m])", (10, 20, 5), 15),
        ("predict_linear(m[2m], 60) < 0", (20, 10, 0), -10),
        ("absent(m)", (), 1),
        ('absent(m{topic="t"})', (1,), None),
        ('m{topic!="t"}', (1,), None),
        ("time() - m", (0, 0, 5), 115),
        ("abs(m)", (-3,), 3),
    ],
)
def test_evaluator_gives_the_results_of_prometheus(
    expr: str, values: tuple[float, ...], expected: float | None
) -> None:
    series = _series(*values) if values else {}
    found = evaluate(expr, series, 60.0 * (len(values) - 1 if values else 0))
    assert isinstance(found, dict)
    assert list(found.values()) == ([] if expected is None else [pytest.approx(expected)])


def test_every_file_of_a_daemon_is_known_to_verify_and_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_node(tmp_path / "node", monkeypatch) as node:
        assert node.tiered("tiered pause orders")[0] == 0
        node.pass_(5)
        code, told = node.tiered("tiered verify")
        left = {path.name for path in node.home.glob("disk*/*") if path.is_file()}
    page = (Path(__file__).parents[4] / "docs" / "reference" / "formats.md").read_text()
    assert {name for name in left if f"`{name}`" not in page} == set()
    assert (code, told) == (0, "2 verified: info=0 warning=0 corrupt=0\n")
