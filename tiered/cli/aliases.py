"""A group whose commands may have a second name: one is documented, the other does the same and stands in the help."""

from __future__ import annotations

from collections.abc import Mapping

import click


class AliasedGroup(click.Group):
    """`aliases` maps other names to the documented ones. Lists of commands and completion have the latter alone."""

    aliases: Mapping[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        with formatter.section("Other names"):
            formatter.write_dl([(other, f"The same as {name}.") for other, name in self.aliases.items()])
