"""``tiered doctor``: problems of this node, its disks and its bucket, and the next step for each."""

from __future__ import annotations

from typing import Annotated

from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, command, option
from tiered.cli.render import Result, Struct, print_result, text
from tiered.cli.session import Session


class DoctorFinding(Struct):
    """The result of one check; `state` is ok, warning, error or skipped, `next` empty if there is nothing to do."""

    check: Annotated[str, text("CHECK")]
    state: Annotated[str, text("STATE")]
    what: Annotated[str, text("WHAT")]
    next: Annotated[str, text("NEXT")]


class Doctor(Result):
    """``tiered doctor``."""

    findings: list[DoctorFinding]


@command("doctor")
def doctor(
    session: Session,
    no_probe: bool = option("--no-probe", "Write nothing to the disk or the store, not even temporarily."),
    only_problems: bool = option("--problems", "Print only warnings and errors."),
    output: str = OUTPUT,
) -> int:
    """Look at versions, settings, disks, limits, the store and what lies in it.

    Each finding says what to do next. Exit 10 with errors, 3 with warnings.
    """
    from tiered.health.doctor import State, examine

    session.set_up_logging(reports_problems=True)
    found = list(examine(session.config(), may_write=not no_probe))
    states = {each.state for each in found}
    rows = [
        DoctorFinding.of(each, state=each.state.value, next=each.next_step)
        for each in found
        if not only_problems or each.state in (State.WARNING, State.ERROR)
    ]
    print_result(Doctor(rows), output)
    if State.ERROR in states:
        return Exit.UNHEALTHY
    return Exit.FINDINGS if State.WARNING in states else Exit.DONE
