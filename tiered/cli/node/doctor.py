"""``tiered doctor``: problems of this node, its disks and its bucket, and the next step for each."""

from __future__ import annotations

import click

from tiered.cli.errors import Exit
from tiered.cli.render import Column, emit, output_option
from tiered.cli.session import Session


@click.command("doctor")
@click.option("--no-probe", is_flag=True, help="Write nothing, not even for a moment, on the disk and in the store.")
@click.option("--problems", "only_problems", is_flag=True, help="Only warnings and errors.")
@output_option()
@click.pass_obj
def doctor(session: Session, no_probe: bool, only_problems: bool, output: str) -> int:
    """Look at versions, settings, disks, limits, the store and what lies in it.

    Each finding says what to do next. Exit 10 with errors, 3 with warnings.
    """
    from tiered.health.doctor import State, examine

    session.set_up_logging(tells_problems=True)
    found = list(examine(session.config(), may_write=not no_probe))
    states = {each.state for each in found}
    rows = [
        {"check": each.check, "state": each.state.value, "what": each.what, "next": each.next_step}
        for each in found
        if not only_problems or each.state in (State.WARNING, State.ERROR)
    ]
    emit("findings", rows, _COLUMNS, output)
    if State.ERROR in states:
        return Exit.UNHEALTHY
    return Exit.FINDINGS if State.WARNING in states else Exit.DONE


_COLUMNS = (
    Column("check", "CHECK"),
    Column("state", "STATE"),
    Column("what", "WHAT"),
    Column("next", "NEXT"),
)
