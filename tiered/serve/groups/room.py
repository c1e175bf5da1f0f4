"""What all groups of a node take of its memory, and what is left. No I/O."""

from __future__ import annotations

GROUPS_MAX = 10_000
MEMBER_BYTES_MAX = 64 << 20


class Room:
    """The bytes of members by group: what a group says of its size, and its name."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._total = 0

    def note(self, group_id: str, size_bytes: int) -> None:
        """The size of a new group, or the new size of a known one."""
        size_bytes += len(group_id)
        self._total += size_bytes - self._sizes.get(group_id, 0)
        self._sizes[group_id] = size_bytes

    def forget(self, group_id: str) -> None:
        """A group was removed."""
        self._total -= self._sizes.pop(group_id, 0)

    def has(self, size_bytes: int) -> bool:
        """For further members."""
        return self._total + size_bytes <= MEMBER_BYTES_MAX

    def has_for_group(self, group_id: str) -> bool:
        return len(self._sizes) < GROUPS_MAX and self.has(len(group_id))
