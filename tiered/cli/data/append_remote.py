"""``tiered append --acks remote``: exit code 0 means that the bucket holds the appended records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from tiered.cli.progress import copy_progress
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop
from tiered.config.units import format_ms
from tiered.manager.append_marks import FILE, AppendMarks, Share, input_key

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager


class RemoteAppend:
    """Waits for the bucket for one command: a check before, progress after; repeated input is not appended again."""

    def __init__(
        self, session: Session, manager: LogManager, topic: str, partition: int | None, timeout_ms: int
    ) -> None:
        """Raises the problem that keeps the topic's records from the bucket: nothing was appended then."""
        from local.storage import DiskStorage
        from tiered.manager.remote_acks import check_remote_acks

        found = manager.topic(topic)
        chosen = found.partitions() if partition is None else [TopicPartition(topic, partition)]
        check_remote_acks(manager, chosen, now_ms=now_ms())
        self._session, self._manager, self._timeout_ms = session, manager, timeout_ms
        self._marks = AppendMarks(DiskStorage(), os.path.join(session.directory, FILE))
        self._target = (found.topic_id, partition)
        self._key: str | None = None

    def given_before(self, source: str, **how: object) -> list[Share] | None:
        """Return the records of the same input that an earlier command appended and did not see in the bucket."""
        if source == "-":
            return None
        told = os.stat(source)
        state = (os.path.realpath(source), told.st_size, told.st_mtime_ns, told.st_ino)
        self._key = input_key({"target": self._target, "source": state, **how})
        shares = self._marks.find(self._key)
        if shares is not None:
            count = sum(each.records for each in shares)
            self._session.say(f"appended by an earlier command: records={count}; waiting for the bucket")
        return shares

    def wait(self, shares: Sequence[Share], stop: Stop) -> bool:
        """Wait until the bucket holds them; False if asked to stop before. Raises the problem that prevents it."""
        from tiered.manager.remote_acks import wait_for_bucket

        if not shares:
            return True
        self._manager.flush()
        self._note(shares)
        try:
            self._session.progress.wait_for("the bucket")
            with copy_progress(self._session, self._manager):
                acked = wait_for_bucket(
                    self._manager,
                    {each.name: each.next_offset for each in shares},
                    clock=now_ms,
                    pause=lambda seconds: stop.wait(seconds),
                    timeout_ms=self._timeout_ms,
                    should_stop=lambda: stop.is_set,
                    waiting=self._print_summary,
                )
        except LogError:
            self._session.say(self._kept())
            raise
        if acked is None:
            self._session.say(self._kept())
            return False
        if self._key is not None:
            self._marks.forget(self._key)
        told = ", ".join(f"{name} up to {upto:,}" for name, upto in sorted(acked.held_upto.items()))
        self._session.say(f"in the bucket: {told}")
        return True

    def _note(self, shares: Sequence[Share]) -> None:
        """Save the mark. If that fails, the command still waits: the records are already appended."""
        if self._key is None:
            return
        try:
            self._marks.note(self._key, list(shares))
        except LogError as error:
            self._key = None
            self._session.say(
                f"running the command again would append the records twice: {' '.join(str(error).split())}"
            )

    def _print_summary(self, left: Sequence[TopicPartition], error: LogError | None) -> None:
        names = ", ".join(map(str, left))
        told = " ".join(str(error).split())
        self._session.say(f"waiting for the bucket, {format_ms(self._timeout_ms)} at most: {names}: {told}")

    def _kept(self) -> str:
        words = "all records are on the disk and not in the bucket yet; 'tiered run' copies them"
        again = "running the same command again waits and appends nothing twice"
        return f"{words}, {again if self._key is not None else 'do not append it again'}"
