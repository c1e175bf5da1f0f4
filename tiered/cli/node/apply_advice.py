"""``tiered apply`` of a file from ``tiered cost advise --out``."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from local.errors import InvalidRequest
from tiered.cli.bucket_options import open_bucket, open_target
from tiered.cli.errors import Exit
from tiered.cli.render import Struct, Work, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.config.units import counted, format_bytes, format_dollars

if TYPE_CHECKING:
    from remote.store import ObjectStore
    from tiered.cost.advice_applying import StepState
    from tiered.cost.advice_file import SavedAdvice


class AdvisedStep(Struct):
    """A step of saved advice: `due` of `parts` parts are not done. Dollars a month; `once_dollars` once."""

    topic: Annotated[str, text("TOPIC")]
    change: Annotated[str, text("CHANGE")]
    due: Annotated[int, number("DUE")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    requests: Annotated[int, number("REQUESTS")]
    once_dollars: Annotated[float, number("ONE-TIME", format_dollars)]
    now_dollars: Annotated[float, number("NOW/MONTH", format_dollars)]
    then_dollars: Annotated[float, number("THEN/MONTH", format_dollars)]
    reason: Annotated[str, text("REASON")]
    parts: int


class AdviceApplied(Work):
    """``tiered apply`` of advice."""

    steps: list[AdvisedStep]


def advice_of(body: bytes, path: str) -> SavedAdvice:
    """Read the file's advice. Raises InvalidRequest, naming the file."""
    from tiered.cost.advice_file import decode_advice

    try:
        return decode_advice(body)
    except InvalidRequest as error:
        raise InvalidRequest(error.attempt, **error.facts, file=path) from None


def apply_advice_file(session: Session, saved: SavedAdvice, *, yes: bool, dry_run: bool, output: str) -> int:
    """Show the steps of the advice, or do the due ones."""
    from tiered.cli.node.apply import confirm
    from tiered.cost.advice_applying import apply_advice, check_advice

    session.say(_summary(saved))
    if dry_run:
        with session.manager(read_only=True) as manager:
            states = check_advice(manager, saved)
        _show(states, output, dry_run=True)
        session.say("the state is unchanged; nothing was applied")
        return Exit.DONE
    confirm(yes=yes)
    with stop_signals() as stop, session.manager() as manager, open_bucket(session, None, {}) as bucket:

        def target_of(storage_class: str) -> ObjectStore:
            return open_target(
                session, bucket.url, bucket.options, storage_class=storage_class, rate=None, is_configured=True
            )

        states = apply_advice(
            manager,
            saved,
            bucket.store,
            now_ms=now_ms,
            keys=bucket.keys,
            target_of=target_of,
            should_stop=lambda: stop.is_set,
        )
    _show(states, output, dry_run=False)
    if stop.is_set:
        session.say("interrupted; finished steps stay, apply the file again to resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    if not all(each.is_done for each in states):
        session.say(
            "some segments could not be moved yet: apply the file again, after the grace period if "
            "there are many pending deletes"
        )
        return Exit.FINDINGS
    return Exit.DONE


def _summary(saved: SavedAdvice) -> str:
    once = sum(each.once_dollars for each in saved.steps)
    size = format_bytes(sum(each.size_bytes for each in saved.steps))
    return f"advice {saved.fingerprint}: {counted(len(saved.steps), 'step')}, {size} to move, ${format_dollars(once)}"


def _show(states: Sequence[StepState], output: str, *, dry_run: bool) -> None:
    rows = [AdvisedStep.of(each, each.step, requests=each.step.puts + each.step.gets) for each in states]
    print_result(AdviceApplied(dry_run=dry_run, steps=rows), output)
