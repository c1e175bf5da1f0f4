"""Hints for a command that fails because another manager holds the directory.

They name an alternative that works while that manager runs.
"""

from __future__ import annotations

import click

from local.errors import Conflict, ErrorCode

# By command. Each hint holds while a manager runs; commands without a hint must wait.
INSTEAD = {
    "topic alter": (
        "without stopping it: write the settings below [topics.'{name}'] of tiered.toml, which "
        "the manager reads again automatically; settings of the topic itself override the file"
    ),
    "apply": (
        "without stopping it: the manager applies due decisions automatically; settings from "
        "advice may be written to tiered.toml, which the manager reads again automatically"
    ),
    "compact": "without stopping it: --bucket compacts the segments in the bucket",
}


def note_instead(error: Conflict) -> None:
    """Add to an error the alternative for this invocation's command, if there is one."""
    context = click.get_current_context(silent=True)
    if context is None or error.code is not ErrorCode.DIRECTORY_HELD:
        return
    words = INSTEAD.get(context.command_path.partition(" ")[2])
    if words is not None:
        error.add_note(words.format(**context.params))
