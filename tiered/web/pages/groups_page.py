"""The pages of consumer groups: the list, and the partitions of one group. Read-only, without a store request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiered.serve.groups.lag import GroupLag, find_group
from tiered.web.html import DataAge, ListPage, group_path, render


def groups_page(groups: Sequence[GroupLag], names: Sequence[str], query: Mapping[str, str], age: DataAge) -> str:
    """The page of the group in `names`, or of all without a name. Raises NotFound."""
    now_ms = age.data_ms + age.age_ms
    if not names:
        return render("groups.html", "Groups", "/groups", now_ms, age, groups=ListPage(groups, query))
    group = find_group(groups, names[0])
    rows = ListPage(group.rows(), query)
    return render("group.html", group.group, group_path(group.group), now_ms, age, group=group, rows=rows)
