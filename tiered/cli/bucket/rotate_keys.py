"""``tiered rotate-keys``: wrap data keys with another key and encrypt manifests and manifest pages.

No segment is rewritten.
"""

from __future__ import annotations

from typing import Annotated

import click

from tiered.cli.errors import Exit, worst
from tiered.cli.progress import progress_option
from tiered.cli.render import Result, Struct, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms


class WrappedKeys(Struct):
    """`keys` are the keys that wrap the data keys, with counts. `key_id` is the one from now on.

    `sealed` counts manifests and pages.
    """

    where: Annotated[str, text("PARTITION")]
    keys: Annotated[str, text("WRAPPED BY")]
    key_id: Annotated[str, text("CURRENT KEY")]
    rewrapped: Annotated[int, number("SEGMENTS")]
    sealed: Annotated[int, number("SEALED")]


class KeysRotated(Result):
    """``tiered rotate-keys``."""

    keys: list[WrappedKeys]


@click.command("rotate-keys")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--dry-run", is_flag=True, help="Count the segments by the key that wraps their data keys, change nothing."
)
@output_option()
@progress_option
@click.pass_obj
def rotate_keys(session: Session, topics: tuple[str, ...], dry_run: bool, output: str) -> Exit:
    """Wrap the data keys of each topic's segments by its remote.encryption.key.id, and seal manifests and pages by it.

    SEALED counts manifests and pages. Upgrade every reader first: versions before sealed manifests cannot read them.
    Afterwards the old keys are needed only for former manifests, until those are collected (tiered gc).
    """
    from tiered.jobs.key_rotation import rotate_keys as rotate

    progress = session.progress
    with session.manager(read_only=dry_run) as manager:
        found = rotate(manager, topics or None, now_ms=now_ms(), dry_run=dry_run, progress=progress.count("partitions"))
        problems = {name: error for name, error in manager.problems.items() if not topics or name.topic in topics}
    rows = [
        WrappedKeys.of(
            each,
            where=str(each.partition),
            keys=",".join(f"{used_id}:{count}" for used_id, count in sorted(each.used.items())) or "-",
            key_id=each.key_id or "-",
        )
        for each in found
    ]
    print_result(KeysRotated(rows), output)
    session.report_problems(problems)
    if dry_run:
        session.say("nothing changed; next: tiered rotate-keys")
    return worst(problems.values())
