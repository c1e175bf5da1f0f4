"""Documentation compared with the code: settings, options, commands, modules, tests, links.

``settings.md``, ``exit-codes.md``, ``findings.md``, ``schemas.md``, ``deep-tests.md``, the option tables of
``spark.md`` and the schemas of ``docs/reference`` are generated. After a change of their sources:

    python tests/unit/project/test_docs_generated.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from json_schemas import COMMANDS as JSON_COMMANDS
from json_schemas import SCHEMAS, schema_text
from source_files import ROOT, calls, trees

from local import errors
from local.verify.findings import CATALOG, CODES, FindingCode, finding
from tiered.cli.errors import Exit, exit_code
from tiered.cli.main import COMMANDS
from tiered.config.properties import PROPERTIES, Kind, Property, Source
from tiered.inspect.segment_table import COLUMNS as SEGMENT_COLUMNS
from tiered.spark.options import TABLE as SPARK_OPTIONS
from tiered.spark.options import Option, Use
from tiered.spark.source.task import TYPES

SETTINGS = ROOT / "docs" / "reference" / "settings.md"
EXIT_CODES = ROOT / "docs" / "reference" / "exit-codes.md"
DEEP_TESTS = ROOT / "docs" / "reference" / "deep-tests.md"
SPARK = ROOT / "docs" / "reference" / "spark.md"
FINDINGS = ROOT / "docs" / "reference" / "findings.md"
SCHEMA_PAGES = ROOT / "docs" / "reference" / "schemas"
SCHEMA_LIST = ROOT / "docs" / "reference" / "schemas.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN_ELSEWHERE = {ROOT / "docs" / "reference" / "benchmarks.md"}

_MANIFEST = """# Settings

Generated from `tiered/config/properties.json` by `python
tests/unit/project/test_docs_generated.py`; a test fails when the two differ.

## Where a setting is written

Highest first: `-X key=value` on the command line, a `TIERED_*` environment variable, the topic's own settings (given
when it was created or altered), `[topics."glob"]` in `tiered.toml` (a later glob over an earlier one), `[defaults]`
there, the default below. `tiered topic describe NAME --settings` shows each effective value and where it comes from.

```toml
[local]
dir = "data"                              # relative to this file; or several: dirs = ["/disk1/logs", "/disk2/logs"]
[remote]
url = "s3://my-bucket/logs"
options = { profile = "logs" }            # for the store's client; a name, never a secret
[defaults]
"remote.storage.enable" = true
"retention.ms" = "30d"
[topics."orders*"]
"local.retention.ms" = "6h"
```

Other variables: `TIERED_DIR` (the directory of `tiered.toml`, as `-C`), `TIERED_LOCAL_DIR` and `TIERED_REMOTE_URL` (in
place of `dir` and `url`), `TIERED_PURE_KERNELS=1` (the pure-Python kernels although compiled ones exist).

Durations are `500ms 30s 15m 6h 7d 2w` and sums such as `1h30m`, a bare number is milliseconds. Sizes are `512MiB`
(powers of two) or `512MB` (powers of ten), a bare number is bytes. An unknown key is an error that names the nearest
known one.

Some combinations are refused if the remote tier is on: a `local.retention.*` larger than its `retention.*`; with
`remote.log.copy.disable` one that does not follow it; a `remote.copy.lag.*` larger than the local retention, which
would make segments due for dropping before copying. Without `delete` in `cleanup.policy`, `retention.*` has no effect.
"""

_INTRODUCTIONS = {
    Source.KAFKA: (
        "Kafka's own",
        "Names, meanings and defaults are Kafka's; units may be written differently.",
    ),
    Source.TIERED: ("Added by tiered", "In the same style, for subjects without a property of Kafka."),
}


_COLUMN_TITLES = "| property | default | value | effect |\n|---|---|---|---|"


def render_settings() -> str:
    """The page ``docs/reference/settings.md``."""
    parts = [_MANIFEST]
    for source, (title, text) in _INTRODUCTIONS.items():
        rows = [row for row in PROPERTIES.values() if row.source is source]
        table = "\n".join(_row(row) for row in rows)
        parts.append(f"## {title}\n\n{text}\n\n{_COLUMN_TITLES}\n{table}\n")
    return "\n".join(parts)


def _row(row: Property) -> str:
    whose = "" if row.is_per_topic else " Of the manager, not of a topic."
    default = f"`{row.default}`"
    if row.kind in (Kind.INT, Kind.MS) and row.default == str(2**63 - 1):
        default = f"{default} (never)"
    return f"| `{row.name}`<br>`{row.environment_variable}` | {default} | {row.expected} | {row.doc}{whose} |"


# Meaning and next step of the caller.
MEANINGS: dict[Exit, tuple[str, str]] = {
    Exit.DONE: ("done", "none"),
    Exit.FAILED: (
        "failed: not found, no permission, an offset out of range, a disk that refuses, output that cannot be written",
        "read the line, correct the cause that it names",
    ),
    Exit.USAGE: (
        "usage: the command, a setting or a file is wrong",
        "correct the command; the same command fails again",
    ),
    Exit.FINDINGS: (
        "findings: a file ends inside a batch; `verify` or `scrub` has a finding that is no damage; `gc` has a list; "
        "a copy differs; `repair --dry-run` has work to do; `compaction advise` or `cost advise` has advice; `doctor` "
        "has a warning; a job did a part of its work and the rest must wait",
        "read the output; no record is lost",
    ),
    Exit.CORRUPTION: (
        "corruption: bytes that contradict their checksum or format",
        "[look for a good copy](../runbooks/corruption.md); it overrides every other code",
    ),
    Exit.CONFLICT: (
        "conflict: another manager has the directory, a newer writer owns the partition, the local log diverged, the "
        "bucket is lost or wrong, or a job could not commit all its work because others replaced the segments "
        "first",
        "[find the other writer](../runbooks/halted.md), or [the bucket](../runbooks/bucket-lost.md); a restart alone "
        "does not help",
    ),
    Exit.UNAVAILABLE: (
        "the store is unavailable, after retries until the deadline; figures that depend on it are null",
        "run it again, later",
    ),
    Exit.UNHEALTHY: (
        "unhealthy: `status --check`, `doctor`, `log-dirs`, `compaction status`, `view status`; a tier could not be "
        "read, for another reason than an unavailable store, and figures are null",
        "each problem is printed with its next step",
    ),
    Exit.INTERRUPTED: ("interrupted by Ctrl-C, cleanly", "run it again, or with `--resume` if the command has it"),
    Exit.TERMINATED: (
        "interrupted by SIGTERM, cleanly, with work left (`append`, `apply`, `run --once`), or by a second signal",
        "run it again, or with `--resume` if the command has it",
    ),
}


def render_exit_codes() -> str:
    """The page ``docs/reference/exit-codes.md``."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.LogError)]
    rows = []
    for code, (meaning, then) in MEANINGS.items():
        names = " ".join(f"`{each.__name__}`" for each in kinds if exit_code(each) is code)
        rows.append(f"| {code.value} | {meaning} | {names} | {then} |")
    return (
        "# Exit codes\n\nGenerated from `tiered/cli/errors.py` and the texts of the test by "
        "`python tests/unit/project/test_docs_generated.py`; a test fails when the two differ.\n\n"
        "Of several errors the heaviest counts: corruption, conflict, usage, failed, "
        "unavailable, findings. A program that uses the library gets the errors themselves, all of them below "
        "`LogError`: [Python API](python-api.md).\n\n"
        "| code | meaning | errors of the library | next step |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


# The titles of the groups of the catalog: the commands that report the codes.
_CHECKS = {
    "verify": "`tiered verify`",
    "scrub": "`tiered scrub`, `tiered verify --remote`",
    "redact": "`tiered rewrite redact`",
    "external": "A bucket in an external layout",
    "doctor": "`tiered doctor`",
    "lint": "`tiered config lint`, `tiered doctor`",
}
_FINDINGS = """# Findings

Generated from `local/verify/findings.json` by `python tests/unit/project/test_docs_generated.py`; a test fails when the
two differ.

A finding is one result of a check ([terms](../explanation/terms-problem-finding-alert.md)). JSON has its code in
`code`. A code is stable; its text may change. Names in braces are facts of the finding. Other facts follow the text as
`name=value`. A finding may have another severity than the usual one of its code: bytes of an active segment that were
never synced may be torn, for example. `{set}` is the command that changes a setting.

| severity | meaning | exit code |
|---|---|---|
| info | possible in a sound log or bucket | 0 |
| warning | an operator should look at it | 3 |
| error | an operation fails until it is corrected | 10 of `tiered doctor`, 3 of `tiered config lint` |
| corrupt | bytes are wrong: [runbook](../runbooks/corruption.md) | 4 |

`tiered doctor` also prints the checks that found nothing wrong (`ok`) or were not possible (`skipped`); their codes are
`CHECK.ok` and `CHECK.skipped`.
"""


def render_findings() -> str:
    """The page ``docs/reference/findings.md``."""
    parts = [_FINDINGS]
    for group, title in _CHECKS.items():
        table = "\n".join(_finding_row(code, known) for code, known in CATALOG[group].items())
        parts.append(f"## {title}\n\n| code | severity | finding | next step |\n|---|---|---|---|\n{table}\n")
    return "\n".join(parts)


def _finding_row(code: str, known: FindingCode) -> str:
    what, step = (each.replace("|", "\\|").replace("<", "&lt;") for each in (known.text, known.next_step))
    return f"| `{code}` | {known.severity} | {what} | {step} |"


def render_schema_list() -> str:
    """The page ``docs/reference/schemas.md``."""
    of_commands = {name for names in JSON_COMMANDS.values() for name in names}
    rows = [f"| `tiered {words}` | {_links(names)} |" for words, names in sorted(JSON_COMMANDS.items())]
    others = [f"- {_links((name,))}: {_told(name)}" for name in sorted(set(SCHEMAS) - of_commands)]
    return (
        "# JSON schemas\n\nGenerated from `tests/unit/support/json_schemas.py` by "
        "`python tests/unit/project/test_docs_generated.py`; a test fails when the two differ.\n\n"
        "`-o json` prints one object with `schema_version`; within one "
        "version fields are only added. A line of `-o jsonl` is an element of the object's list and has no version. Of "
        "`status` a line has the requested sections, of `dump` the name of its section if there are several. "
        "Schemas named `...-line` are printed as lines only. `placement` prints Kafka's own file. "
        "Every output of a command in the tests is compared with these schemas "
        "(`tests/unit/support/printed_json.py`).\n\n"
        "| command | schemas |\n|---|---|\n" + "\n".join(rows) + "\n\n## Others\n\n" + "\n".join(others) + "\n"
    )


def render_deep_tests() -> str:
    """The page ``docs/reference/deep-tests.md``."""
    paths = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.deep(" in path.read_text())
    rows = [
        f"| `{path.relative_to(ROOT)}` | {test} | {reason} |" for path in paths for test, reason in deep_marks(path)
    ]
    return (
        "# Tests of the deep profile\n\nGenerated from the marker `deep` by "
        "`python tests/unit/project/test_docs_generated.py`; a test fails when the two differ.\n\n"
        "A plain `pytest` leaves these tests out, because each takes many seconds. `.ci/run` runs them, and so do "
        "`pytest --deep`, `pytest -m deep` and a command line that names a test.\n\n"
        "| file | test | content |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def deep_marks(path: Path) -> Iterator[tuple[str, str]]:
    """Each deep test of a file, or `all` if the file is marked, with the marker's text."""
    text = path.read_text()
    for node in ast.parse(text).body if "mark.deep" in text else ():
        name = getattr(node, "name", "all")
        for text in re.findall(r"mark\.deep\([\'\"]([^\'\"]+)", _decorators(node)):
            yield (f"`{name}`" if name != "all" else name), text


def _decorators(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return ast.unparse(node)
    return " ".join(ast.unparse(each) for each in getattr(node, "decorator_list", []))


def with_spark_options(page: str) -> str:
    """The page ``docs/reference/spark.md`` with its tables of options."""
    uses = {"a read": Use.BATCH, "a stream": Use.STREAM, "the table of segments": Use.SEGMENTS, "a write": Use.WRITE}
    for name, use in uses.items():
        options = [each for each in SPARK_OPTIONS if (each.uses == use if use is Use.STREAM else use in each.uses)]
        begin, end = f"<!-- options of {name} -->\n", "<!-- end of the options -->"
        before, _, rest = page.partition(begin)
        rows = "".join(f"{_option_row(each)}\n" for each in options)
        table = f"| option | value | default | effect |\n|---|---|---|---|\n{rows}"
        page = before + begin + table + end + rest.partition(end)[2]
    return page


def _option_row(option: Option) -> str:
    value = f"{option.kind.value} {', '.join(option.choices)}" if option.choices else option.kind.value
    default = f"`{option.default}`" if option.default is not None else ""
    return f"| `{option.name}` | {value} | {default} | {option.help} |"


def _links(names: Iterable[str]) -> str:
    return " · ".join(f"[{name}](schemas/{name}.json)" for name in names)


def _told(name: str) -> str:
    return " ".join((SCHEMAS[name].__doc__ or "").partition("\n\n")[0].split())


def test_list_of_schemas_equals_the_generated_page() -> None:
    assert SCHEMA_LIST.read_text() == render_schema_list(), "run: python tests/unit/project/test_docs_generated.py"


def test_page_of_deep_tests_equals_the_generated_page() -> None:
    assert DEEP_TESTS.read_text() == render_deep_tests(), "run: python tests/unit/project/test_docs_generated.py"


def test_page_of_exit_codes_equals_the_generated_page() -> None:
    assert list(MEANINGS) == list(Exit)
    assert EXIT_CODES.read_text() == render_exit_codes(), "run: python tests/unit/project/test_docs_generated.py"


def test_findings_page_equals_the_generated_page() -> None:
    assert FINDINGS.read_text() == render_findings(), "run: python tests/unit/project/test_docs_generated.py"


def test_the_catalog_of_findings_has_the_codes_of_the_checks_and_no_other() -> None:
    named = set()
    for path, tree in trees(r"\b(finding|Rule)\("):
        for call in calls(tree):
            if getattr(call.func, "id", getattr(call.func, "attr", "")) in ("finding", "Rule"):
                assert not isinstance(call.args[0], ast.JoinedStr), f"a code is a literal: {path}:{call.lineno}"
                named |= {each.value for each in ast.walk(call.args[0]) if isinstance(each, ast.Constant)}
    assert named <= set(CODES)
    sources = "".join(
        path.read_text() for package in ("local", "remote", "tiered") for path in (ROOT / package).rglob("*.py")
    )
    assert [code for code in CODES if f'"{code}"' not in sources] == []
    assert list(CATALOG) == list(_CHECKS)
    assert sum(map(len, CATALOG.values())) == len(CODES), "a code is in one group"


@pytest.mark.parametrize("code", CODES)
def test_severity_of_a_code_is_known(code: str) -> None:
    assert finding(code, "here", what="").severity.name.lower() == CODES[code].severity


def test_settings_page_equals_the_generated_page() -> None:
    assert SETTINGS.read_text() == render_settings(), "run: python tests/unit/project/test_docs_generated.py"


def test_every_schema_page_equals_the_generated_one() -> None:
    assert {page.stem for page in SCHEMA_PAGES.glob("*.json")} == set(SCHEMAS)
    for name in SCHEMAS:
        assert (SCHEMA_PAGES / f"{name}.json").read_text() == schema_text(name), "run: python " + __file__


def test_every_command_has_a_section_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert set(COMMANDS) == set(re.findall(r"^## `tiered ([\w-]+)", page, re.MULTILINE))


def test_every_option_and_column_of_the_spark_source_is_documented() -> None:
    page = SPARK.read_text()
    assert page == with_spark_options(page), "run: python tests/unit/project/test_docs_generated.py"
    names = (*(option.name for option in SPARK_OPTIONS), *TYPES, *SEGMENT_COLUMNS)
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_folder_has_a_line_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    listed = re.findall(r"^\| `((?:local|remote|policies|tiered)[\w/]*)` \| ", page, re.MULTILINE)
    assert sorted(set(listed) - {"local", "remote", "tiered"}) == sorted(folders())


def folders() -> Iterator[str]:
    """Every folder with Python files, as a path below the root. Of the packages, only `policies` is included."""
    for package in ("local", "remote", "policies", "tiered"):
        for path in {each.parent for each in (ROOT / package).rglob("*.py")}:
            if path != ROOT / package or package == "policies":
                yield path.relative_to(ROOT).as_posix()


def test_every_test_that_a_page_names_exists() -> None:
    missing = []
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text()):
            if not (ROOT / path).exists() or (name and name not in functions_of(ROOT / path)):
                missing.append(f"{page.name}: {path}::{name}")
    assert missing == []


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_has_a_target(page: Path) -> None:
    broken = []
    for link in links_of(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists() or target in WRITTEN_ELSEWHERE
        if not is_there or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def links_of(text: str) -> list[str]:
    """Links to files of this repository, without code blocks."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    found = re.findall(r"\]\(\s*([^)\s]+)\s*\)", prose)
    return [link for link in found if not link.startswith(("https://", "http://"))]


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_and_every_runbook_is_in_its_index() -> None:
    docs, runbooks = ROOT / "docs", ROOT / "docs" / "runbooks"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    on_map = {path for path in pages if f"]({path})" in (docs / "index.md").read_text(encoding="utf-8")}
    on_theirs = {f"runbooks/{path.name}" for path in runbooks.glob("*.md")}
    assert all(f"]({path.name})" in (runbooks / "index.md").read_text() for path in runbooks.glob("[!i]*.md"))
    assert pages == on_map | on_theirs


if __name__ == "__main__":
    SCHEMA_PAGES.mkdir(exist_ok=True)
    for name in SCHEMAS:
        (SCHEMA_PAGES / f"{name}.json").write_text(schema_text(name))
    SCHEMA_LIST.write_text(render_schema_list())
    SETTINGS.write_text(render_settings())
    SPARK.write_text(with_spark_options(SPARK.read_text()))
    EXIT_CODES.write_text(render_exit_codes())
    DEEP_TESTS.write_text(render_deep_tests())
    FINDINGS.write_text(render_findings())
