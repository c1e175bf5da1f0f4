"""Error codes: programs branch on codes and fields, never on the text of a message."""

from __future__ import annotations

import ast
import pickle

import pytest
from manager_world import NOW
from source_files import ROOT, trees

from local.errors import AccessDenied, ErrorCode, InvalidRequest, LogError, NotFound, Unavailable
from policies.decisions import CopySegment
from tiered.cli.errors import one_line
from tiered.health.lint import _mistake
from tiered.maintenance.remote_tasks import next_copier_turn
from tiered.node.problems import WorkJournal
from tiered.status.status_report import _SET_CLOCK, _of_node

TEXTS = frozenset({"reason", "attempt", "message", "why", "what", "text", "problem", "trouble", "next_step"})


def _is_text(node: ast.AST) -> bool:
    """Whether an expression is the text of a message: a field for people, or an error converted to a string."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return len(node.args) == 1 and isinstance(node.args[0], ast.Name) and node.args[0].id == "error"
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def _branches_on_text(tree: ast.AST) -> list[int]:
    """Lines that search for words in a message, or test its start or end."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            found += [node.lineno for each in node.comparators if _is_text(each)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_text(node.func.value):
            found += [node.lineno] * (node.func.attr in ("startswith", "endswith", "find"))
    return found


FOREIGN = ("remote/store/hdfs_store.py", "_NOT_A_DIRECTORY in str(error)")  # the only client whose errors have no code


def test_no_module_branches_on_the_text_of_a_message() -> None:
    found = []
    for name, tree in trees(rf"str\(error\)|\.({'|'.join(TEXTS)})\b"):
        lines = (ROOT / name).read_text().splitlines()
        found += [
            f"{name}:{line}"
            for line in _branches_on_text(tree)
            if not (name == FOREIGN[0] and FOREIGN[1] in lines[line - 1])
        ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "x = 'cleaned' in each.reason",
        "y = error.attempt.endswith('s')",
        "z = 'a' not in str(error)",
        "w = told.message.startswith(A)",
    ],
)
def test_search_finds_a_branch_on_text(line: str) -> None:
    assert _branches_on_text(ast.parse(line)) == [1]


def test_error_code_survives_restating_and_pickling() -> None:
    error = NotFound("a", key="k").with_code(ErrorCode.STORE_DIRECTORY_MISSING)
    for other in (error.restated("b", key="l"), pickle.loads(pickle.dumps(error))):
        assert (type(other), other.code) == (NotFound, ErrorCode.STORE_DIRECTORY_MISSING)
    assert LogError("a").code is None


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NotFound("reworded").with_code(ErrorCode.STORE_DIRECTORY_MISSING), "correct the url"),
        (AccessDenied("reworded").with_code(ErrorCode.CREDENTIALS_MISSING), "AWS_PROFILE"),
    ],
)
def test_hint_of_an_error_does_not_depend_on_its_text(error: LogError, hint: str) -> None:
    assert hint in one_line(error)


def test_lint_recognises_a_manager_setting_by_its_code() -> None:
    error = InvalidRequest("reworded", key="k").with_code(ErrorCode.SETTING_OF_MANAGER)
    assert _mistake("", "k", "1", error).next_step == "move it to [defaults] of tiered.toml"


def test_next_step_for_a_clock_jump_does_not_depend_on_the_message() -> None:
    journal = WorkJournal(lambda: (_ for _ in ()).throw(AssertionError), pid=1, started_ms=NOW, interval_ms=1000)
    journal.keep = lambda: None  # type: ignore[method-assign]
    error = Unavailable("reworded").with_code(ErrorCode.CLOCK_JUMPED)
    for now_ms in (NOW, NOW + 1):
        journal.note_round({}, now_ms, of_node=error)
        (problem,) = _of_node(journal.report.troubles[0], "root")
        assert problem.next_step == _SET_CLOCK


def test_indivisible_copies_are_one_slice_for_any_reason_text() -> None:
    def planned(*, is_indivisible: bool) -> list[CopySegment]:
        fields = {"size_bytes": 1 << 20, "reason": "reworded", "is_indivisible": is_indivisible}
        return [CopySegment(base_offset=at, next_offset=at + 1, **fields) for at in range(110)]  # type: ignore[arg-type]

    whole, parts = (next_copier_turn(planned(is_indivisible=each)) for each in (True, False))
    assert (len(whole.decisions), whole.has_more) == (110, False)
    assert (len(parts.decisions), parts.has_more) == (64, True)
