"""``tiered rotate-keys``: data keys of encrypted segments wrapped by another key; no object is rewritten."""

from __future__ import annotations

from collections import Counter

import click

from tiered.cli.progress import progress_option
from tiered.cli.render import Column, emit, output_option
from tiered.cli.session import Session, now_ms


@click.command("rotate-keys")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--dry-run", is_flag=True, help="Count what is wrapped by which key, change nothing.")
@output_option()
@progress_option
@click.pass_obj
def rotate_keys(session: Session, topics: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Wrap the data keys of each topic's segments by the key that its remote.encryption.key.id names.

    Afterwards the old keys are needed only for former heads, until those are collected.
    """
    from remote.rewrapping import rewrap_keys

    rows = []
    with session.manager(read_only=dry_run) as manager:
        for topic in topics:
            manager.topic(topic)
        partitions = manager.partitions(topics or None)
        session.progress.expect(len(partitions), "partitions")
        for held in partitions:
            session.progress.advance()
            head, key_id = held.head(), held.at_rest.key_id
            if head is None or held.metadata is None:
                continue
            used = held.metadata.ask(
                head, lambda index: Counter(row.key_id for row in index.rows() if row.key_id is not None)
            )
            if not dry_run and key_id is not None:
                with held.lock:
                    rewrapped = rewrap_keys(held.metadata, held.at_rest.keys, key_id, now_ms())
            else:
                rewrapped = sum(count for used_id, count in used.items() if used_id != key_id) if key_id else 0
            wrapped_by = ",".join(f"{used_id}:{count}" for used_id, count in sorted(used.items()))
            rows.append(
                {"where": str(held.name), "keys": wrapped_by or "-", "key_id": key_id or "-", "rewrapped": rewrapped}
            )
        problems = dict(manager.problems)
    emit("keys", rows, _COLUMNS, output)
    session.tell_problems(problems)
    if dry_run:
        session.say("nothing changed; next: tiered rotate-keys")


_COLUMNS = (
    Column("where", "PARTITION"),
    Column("keys", "WRAPPED BY"),
    Column("key_id", "KEY NOW"),
    Column("rewrapped", "SEGMENTS", is_number=True),
)
