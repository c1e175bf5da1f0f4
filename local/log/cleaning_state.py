"""The cleaning state of a log: whether it may be cleaned, is being cleaned, or is paused.

| state | start | end | pause | resume |
|---|---|---|---|---|
| none | in progress | | paused(1) | |
| in progress | | none | aborted | |
| aborted | | paused(1) | | |
| paused(n) | | | paused(n + 1) | paused(n - 1), or none |

A blank is a mistake of the caller and raises InvalidRequest. A pass starts only from *none*, so a log never has two.

A change of something that the cleaner relies on **pauses** the log first: a truncation, a move to another disk,
another cleanup policy, a deletion.

1. The pause turns a pass under way into *aborted*.
2. The cleaner checks for this between two steps and ends the pass.
3. The log becomes *paused*, and the pausing thread continues.

Pauses nest: the cleaner may start again after the last resume. A second pause of an *aborted* log waits for *paused*
and adds one.

The result of a pass counts only if the pass ends from *in progress*: only then is the cleaner checkpoint written. An
aborted pass may have swapped in groups of segments. Each group is sound by itself and is cleaned again.

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
    """The cleaning state of one log. *paused* counts its pauses."""

    NONE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class Event(Enum):
    """An event that changes the state."""

    START = "start"
    END = "end"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A state with its number of pauses, 0 except for *paused*."""

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
    """Return the next state. Raises InvalidRequest for a transition that the table lacks."""
    target = NEXT.get((now.state, event))
    if target is None:
        raise InvalidRequest(
            "cannot change the cleaning state, the transition is not allowed", state=now, event=event.value
        )
    if target is not State.PAUSED:
        return Cleaning(target)
    pauses = now.pauses - 1 if event is Event.RESUME else now.pauses + 1
    return Cleaning(State.PAUSED, pauses) if pauses else Cleaning()


class CleaningGate:
    """The cleaning state of one log. Thread safe; hold no lock of the log while pausing."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._changed = threading.Condition()
        self._now = Cleaning()
        self._cleaner: int | None = None

    @property
    def now(self) -> Cleaning:
        return self._now

    def try_start(self) -> bool:
        """Start a pass; False during another pass or a pause. The caller must call `end`."""
        with self._changed:
            if self._now.state is not State.NONE:
                return False
            self._cleaner = threading.get_ident()
            self._change(Event.START)
            return True

    @property
    def is_aborted(self) -> bool:
        """Whether the pass under way must end."""
        return self._now.state is State.ABORTED

    def end(self, undo: Callable[[], None] = lambda: None) -> bool:
        """End the pass; return False if it was aborted. Then `undo` runs before any pausing thread continues."""
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
        """Pause the log and wait until a pass under way has ended. The pause lasts until `resume`.

        Raises InvalidRequest in the cleaning thread itself, which would wait for ever.
        """
        with self._changed:
            if self._cleaner == threading.get_ident():
                raise InvalidRequest("the cleaner cannot pause its own cleaning", partition=self._partition)
            self._changed.wait_for(lambda: self._now.state is not State.ABORTED)
            is_running = self._now.state is State.IN_PROGRESS
            self._change(Event.PAUSE)
            if is_running:
                self._changed.wait_for(lambda: self._now.state is State.PAUSED)

    def resume(self) -> None:
        """End one pause. Raises InvalidRequest for a log that is not paused."""
        with self._changed:
            self._change(Event.RESUME)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the log inside the context."""
        self.abort_and_pause()
        try:
            yield
        finally:
            self.resume()

    def _change(self, event: Event) -> None:
        self._now = after(self._now, event)
        self._changed.notify_all()
