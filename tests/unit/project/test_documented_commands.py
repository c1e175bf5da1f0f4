"""Every command, option and setting printed in the documentation exists."""

from __future__ import annotations

import pytest
from documented_commands import commands_of, complaint, written_commands


def test_every_documented_command_parses() -> None:
    written = list(written_commands())
    wrong = [f"{each}\n    {told}" for each in written if (told := complaint(each)) is not None]
    assert not wrong, "\n".join(wrong)
    assert len(written) > 250, "the documentation must have more than 250 commands, or the search misses some"


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("```sh\ntiered statsu\n```\n", "unknown command: statsu"),
        ("```bash\nsudo -u logs tiered status --chek\n```\n", "--chek"),
        ("```console\n$ tiered topic creat orders\nmade\n```\n", "creat"),
        ("```\nA=b .ci/with tiered topic describe\n```\n", "Missing argument"),
        ("```text\ntiered -C /srv generate systemd --metric :1\n```\n", "--metric"),
        ("```sh\ntiered rewrite recode orders \\\n  --codec zstd --storage-clas IA\n```\n", "--storage-clas"),
        ("```sh\nseq 1 | sed 's/|/x/' | tiered append orders - -Q :\n```\n", "-Q"),
        ("```sh\ntiered view drop orders && tiered view bild orders > x  # and\n```\n", "bild"),
        ("```sh\ntiered consume orders --isolation commited\n```\n", "commited"),
        ("```sh\ntiered append orders - 0\n```\n", "too many words"),
        ("```sh\ntiered topic alter orders -X retenton.ms=7d\n```\n", "retenton.ms"),
        ("```sh\ntiered topic alter orders -X retention.ms=7days\n```\n", "7days"),
        ('```sh\neval "$(tiered completion bash --all)"\n```\n', "--all"),
        ("```sh\nspark-submit --master yarn $(python -m tiered.spark.submit) scrub --dep\n```\n", "--dep"),
        ("    tiered gc --deletes\n", "--deletes"),
        ("Say `tiered repair REPORT --dry` first.\n", "--dry"),
        ("Say `tiered run\n--metrik` first.\n", "--metrik"),
    ],
)
def test_invalid_command_in_a_page_is_reported(printed: str, told: str) -> None:
    found = [complaint(each) for each in commands_of(printed, "a page")]
    (wrong,) = [each for each in found if each is not None]
    assert told in wrong


@pytest.mark.parametrize(
    ("printed", "commands"),
    [
        ("```sh\ntiered topic create TOPIC -p N -X KEY=VALUE\n```\n", 1),
        ("```sh\nwhile true; do tiered status; done\ntiered doctor # tiered statsu\n```\n", 1),
        ("```python\ntiered statsu\n```\n", 0),
        ("```text\nthe tiered statsu\n```\n", 0),
        ("`tiered completion bash|zsh|fish`, `tiered append TOPIC[/PARTITION] [FILE|-] [-o FORMAT]`", 2),
        ("`tiered repair --dry-run` and `tiered run --metrics`", 2),
    ],
)
def test_placeholders_and_other_programs_are_accepted(printed: str, commands: int) -> None:
    found = list(commands_of(printed, "a page"))
    assert [complaint(each) for each in found] == [None] * commands
