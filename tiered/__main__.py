"""``python -m tiered`` is the command ``tiered``."""

from tiered.cli.main import run

run()
