"""Whether a log may be cleaned, is being cleaned, or has to be let go of: one small machine a log.

| state | start | end | pause | resume |
|---|---|---|---|---|
| none | in progress | | paused(1) | |
| in progress | | none | aborted | |
| aborted | | paused(1) | | |
| paused(n) | | | paused(n + 1) | paused(n - 1), or none |

A blank is a mistake of the caller, told as such. A pass starts from *none* only, so a log never has two. Whoever has to
change what the cleaner relies on (truncation, moving to another disk, another cleanup policy, deletion) **pauses**
first: a pass under way becomes *aborted*, the cleaner sees that between two steps and ends, and the pause begins. It
nests, for several may need the log at once: the last resume lets the cleaner in again. Whoever pauses a log that is
aborted already waits for that pause to begin and adds its own.

What a pass achieved counts only where it ends from *in progress*: the cleaner's checkpoint is written from nowhere
else. An aborted pass may have swapped groups of segments in, each of which is sound by itself; they are cleaned again.

Source: kafka `LogCleanerManager`, `LogCleaningState`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from local.errors import InvalidRequest
from local.names import TopicPartition


class State(Enum):
    """Of one log; *paused* counts those who asked for it."""

    NONE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class Event(Enum):
    """What can happen to a state."""

    START = "start"
    END = "end"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A state; `pauses` is 0 but for *paused*."""

    state: State = State.NONE
    pauses: int = 0

    def __str__(self) -> str:
        return f"{self.state.value}({self.pauses})" if self.pauses else self.state.value


NEXT: dict[tuple[State, Event], State] = {
    (State.NONE, Event.START): State.IN_PROGRESS,
    (State.NONE, Event.PAUSE): State.PAUSED,
    (State.IN_PROGRESS, Event.END): State.NONE,
    (State.IN_PROGRESS, Event.PAUSE): State.ABORTED,
    (State.ABORTED, Event.END): State.PAUSED,
    (State.PAUSED, Event.PAUSE): State.PAUSED,
    (State.PAUSED, Event.RESUME): State.PAUSED,
}


def after(now: Cleaning, event: Event) -> Cleaning:
    """The state that follows. Raises InvalidRequest for what is blank in the table."""
    target = NEXT.get((now.state, event))
    if target is None:
        raise InvalidRequest("changing the state of a cleaning, not from here", state=now, event=event.value)
    if target is not State.PAUSED:
        return Cleaning(target)
    pauses = now.pauses - 1 if event is Event.RESUME else now.pauses + 1
    return Cleaning(State.PAUSED, pauses) if pauses else Cleaning()


class CleaningGate:
    """The machine of one log, for the threads that share it. Thread safe; hold no lock of the log while pausing."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._changed = threading.Condition()
        self._now = Cleaning()
        self._cleaner: int | None = None

    @property
    def now(self) -> Cleaning:
        return self._now

    def try_start(self) -> bool:
        """Begin a pass; False when there is one, or the log is paused. The caller ends it with `end`."""
        with self._changed:
            if self._now.state is not State.NONE:
                return False
            self._cleaner = threading.get_ident()
            self._change(Event.START)
            return True

    @property
    def is_aborted(self) -> bool:
        """Whether the pass under way has to let go."""
        return self._now.state is State.ABORTED

    def end(self, undo: Callable[[], None] = lambda: None) -> bool:
        """End the pass; False when it was aborted: then `undo` ran before anybody who waits went on."""
        with self._changed:
            is_done = self._now.state is State.IN_PROGRESS
            try:
                if self._now.state is State.ABORTED:
                    undo()
            finally:
                self._cleaner = None
                self._change(Event.END)
            return is_done

    def abort_and_pause(self) -> None:
        """The cleaner has let go when this returns, and stays away until `resume`. Waits for its next step.

        Raises InvalidRequest when the cleaning thread itself asks: it would wait for ever.
        """
        with self._changed:
            if self._cleaner == threading.get_ident():
                raise InvalidRequest("pausing a cleaning, the cleaner itself asks", partition=self._partition)
            self._changed.wait_for(lambda: self._now.state is not State.ABORTED)
            is_running = self._now.state is State.IN_PROGRESS
            self._change(Event.PAUSE)
            if is_running:
                self._changed.wait_for(lambda: self._now.state is State.PAUSED)

    def resume(self) -> None:
        """Take one pause back. Raises InvalidRequest for a log that is not paused."""
        with self._changed:
            self._change(Event.RESUME)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, nobody cleans this log."""
        self.abort_and_pause()
        try:
            yield
        finally:
            self.resume()

    def _change(self, event: Event) -> None:
        self._now = after(self._now, event)
        self._changed.notify_all()
