"""A click group whose commands may have an alias: the help names it, only the main name is documented."""

from __future__ import annotations

from collections.abc import Mapping

import click


class AliasedGroup(click.Group):
    """`aliases` maps aliases to documented names. Command lists and completion have only the latter."""

    aliases: Mapping[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        with formatter.section("Other names"):
            formatter.write_dl([(other, f"Alias of {name}.") for other, name in self.aliases.items()])
