"""Common first mistakes with the answer of `tiered`: the table, and its page.

``docs/reference/mistakes.md`` is generated from it:

    python tests/unit/support/mistakes.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mistakes.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One row: the typed words, the state of the node, and the content of the one-line answer.

    `names` are the thing and the place. `hint` is the next step, word for word. `world` names a change to a healthy
    node
    that makes a valid command fail.
    """

    what: str
    words: tuple[str, ...]
    code: int
    names: tuple[str, ...]
    hint: str = ""
    world: str = ""


def _entry(what: str, typed: str, code: int, *names: str, hint: str = "", world: str = "") -> Mistake:
    return Mistake(what=what, words=tuple(typed.split()), code=code, names=names, hint=hint, world=world)


WORDS = (
    _entry("a command misspelt", "cosume orders", 2, "cosume", hint="did you mean consume?"),
    _entry("a subcommand misspelt", "topic creat new", 2, "'creat'", hint="Did you mean 'create'?"),
    _entry("an option misspelt", "status --chek", 2, "'--chek'", hint="'--check'"),
    _entry("an option without its value", "consume orders --from", 2, "'--from'", hint="requires an argument"),
    _entry("an argument left out", "topic create", 2, hint="Missing argument 'NAME...'"),
    _entry("a word too many", "consume orders 0", 2, "(0)", hint="unexpected extra argument"),
    _entry("a choice that is none", "consume orders --isolation commited", 2, "'commited'", hint="'read_committed'"),
    _entry("an output form that is none", "status -o yaml", 2, "'yaml'", hint="'json'"),
    _entry("a number that is none", "topic create new -p two", 2, "--partitions", "'two'"),
)
TOPICS = (
    _entry("a topic misspelt", "status orderz", 1, "topic=orderz", "there_are=", hint="did_you_mean=orders"),
    _entry("a topic misspelt, to be altered", "topic alter ordes -X retention.ms=7d", 1, hint="did_you_mean=orders"),
    _entry(
        "a partition named as its directory is", "consume orders-0", 1, "topic=orders-0", hint="did_you_mean=orders"
    ),
    _entry(
        "a topic that exists created again",
        "topic create orders",
        2,
        "it already exists",
        "topic=orders",
        hint="tiered topic alter",
    ),
    _entry("a topic's name with a blank or a slash", "topic create my/topic", 2, "'my/topic'", hint="of a-z A-Z 0-9"),
    _entry(
        "a topic given to the care of a bucket that it does not hold", "scrub orderz", 1, "name=orderz", "store=file:"
    ),
    _entry("a partition that is not there", "consume orders/9", 1, "partition=orders/9"),
    _entry("a partition that is no number", "consume orders/first", 2, "text='orders/first'"),
    _entry("an offset that is not there", "consume orders/0 --from 5000", 1, "offset=5000", hint="next_offset="),
    _entry(
        "a position that is none",
        "consume orders --from yesterday",
        2,
        "'yesterday'",
        hint="expected='start end OFFSET",
    ),
    _entry("a time that is none", "plan orders --at tomorrow", 2, "'tomorrow'", hint="2026-11-20T12:00:00Z"),
    _entry("a plan for a time that is past", "plan orders --at -1d", 2, "at=-1d", hint="such as +7d"),
    _entry(
        "a retention of less than none, among others", "cost simulate --retention 7d,-5", 2, "value=-5", hint="-1 is"
    ),
    _entry("a local retention of less than none", "cost simulate --local -3", 2, "value=-3", hint="least=-2"),
    _entry("a rate without its time", "cost simulate --rate 20GiB", 2, "invalid --rate", hint="20GiB/d"),
    _entry("a rate of another topic", "cost advise --rate no=1GiB/d", 2, "topic=no", hint="topics="),
    _entry("reads without end", "cost simulate --reads inf", 2, "value=inf", hint="at_most=1000000"),
    _entry("no records for a partition that is not there", "append orders/9 /dev/null", 1, "partition=orders/9"),
    _entry("a template of nothing", "consume orders --format=", 2, "it is empty and would print nothing", hint="%v"),
    _entry("options for a bucket that is not named", "consume orders --option a=b", 2, "--option", hint="--remote"),
    _entry("the same to the care of a bucket", "scrub --option a=b", 2, "--option", hint="--remote"),
    _entry("an option for a bucket without a value", "init new --option profile", 2, "invalid --option", "'profile'"),
    _entry("offsets that end before they begin", "dump orders/0 --from-offset 5 --to-offset 2", 2, hint="below"),
    _entry("a time that ends before it begins", "dump orders/0 --since @5 --until @2", 2, hint="before"),
    _entry("a share that is no number", "generate alerts --free nan", 2, "--free", "'nan'"),
    _entry("dollars that are no number", "cost advise --least nan", 2, "--least", "'nan'"),
    _entry("dollars without end", "cost advise --least inf", 2, "--least", "'inf'"),
    _entry("a unit that would listen nowhere", "generate systemd --metrics often", 2, "'often'", hint="[HOST]:PORT"),
    _entry("a unit of nobody", "generate systemd --user=", 2, "user=''", hint="a user's name"),
    _entry("a port that is a digit, and no number", "run --once --metrics :²", 2, "':²'", hint="[HOST]:PORT"),
    _entry("records deleted above the log end", "delete-records orders/0 --before 5000 --yes", 1, "offset=5000"),
    _entry(
        "records deleted of no partition", "delete-records orders --before 5", 2, "'orders'", hint="TOPIC/PARTITION"
    ),
    _entry("something for good, without a terminal to ask", "topic delete orders", 2, "orders", hint="add --yes"),
)
SETTINGS = (
    _entry(
        "a setting misspelt", "topic alter orders -X retenton.ms=7d", 2, "retenton.ms", hint="did_you_mean=retention.ms"
    ),
    _entry(
        "a setting with underscores", "-X retention_ms=7d status", 2, "retention_ms", hint="did_you_mean=retention.ms"
    ),
    _entry("a setting without -X", "topic alter orders retention.ms=7d", 2, "retention.ms=7d"),
    _entry("a setting without a value", "-X retention.ms status", 2, "'retention.ms'", hint="key=value"),
    _entry(
        "a unit that is none", "topic alter orders -X retention.ms=7days", 2, "'7days'", hint="a duration such as 7d"
    ),
    _entry("a size for humans of another kind", "topic alter orders -X segment.bytes=1Gb2", 2, "'1Gb2'", hint="512MiB"),
    _entry("a size below its least", "topic alter orders -X segment.bytes=1", 2, "segment.bytes", hint="at least 1024"),
    _entry(
        "a switch said otherwise", "topic alter orders -X remote.storage.enable=yes", 2, "'yes'", hint="true or false"
    ),
    _entry("a codec that Kafka has not", "topic alter orders -X compression.type=brotli", 2, "'brotli'", hint="zstd"),
    _entry(
        "a policy misspelt", "topic alter orders -X cleanup.policy=compacted", 2, "'compacted'", hint="delete, compact"
    ),
    _entry(
        "settings that exclude one another: the disk keeps more than the log",
        "topic alter orders -X local.retention.ms=30d",
        2,
        "local.retention.ms=2592000000",
        "retention.ms=604800000",
    ),
    _entry(
        "a setting of the manager given to a topic",
        "topic alter orders -X remote.log.manager.task.interval.ms=1s",
        2,
        "remote.log.manager.task.interval.ms",
        "topic=orders",
    ),
    _entry(
        "a setting misspelt in tiered.toml",
        "status",
        2,
        "tiered.toml",
        hint="did_you_mean=retention.ms",
        world="misspelt",
    ),
    _entry(
        "a section misspelt in tiered.toml", "status", 2, "tiered.toml", hint="did_you_mean=remote", world="section"
    ),
    _entry("a tiered.toml that is no TOML", "status", 2, "tiered.toml", "line 2", world="invalid TOML"),
    _entry(
        "a tiered.toml that is JSON", "status", 2, "tiered.toml", "the file is JSON", hint="write TOML", world="json"
    ),
    _entry("a tiered.toml in UTF-16", "status", 2, "tiered.toml", "at=0", hint="save it as UTF-8", world="utf-16"),
    _entry("a url that is empty", "status", 2, "key=url section=remote", hint="remove the key", world="no url"),
    _entry(
        "a variable misspelt",
        "status",
        2,
        "TIERED_RETENTON_MS",
        hint="did_you_mean=TIERED_RETENTION_MS",
        world="variable",
    ),
)
PLACES = (
    _entry("the wrong directory", "-C elsewhere status", 1, "/elsewhere", hint="run 'tiered init'"),
    _entry(
        "a file in place of the directory", "-C tiered.toml status", 2, "directory=tiered.toml", hint="names a file"
    ),
    _entry("a directory that a script left empty", "--dir= status", 2, hint="name a directory"),
    _entry("a node initialised twice", "init", 2, "it already exists", "tiered.toml"),
    _entry(
        "a directory given as a bucket", "consume orders --remote bucket", 2, "url=bucket", hint="file:///directory"
    ),
    _entry(
        "a path given as a bucket",
        "consume orders --remote /srv/bucket",
        2,
        "url=/srv/bucket",
        hint="file:///directory",
    ),
    _entry(
        "a file url that is relative",
        "init new --remote file://bucket",
        2,
        "url=file://bucket",
        hint="file:///directory",
    ),
    _entry("a bucket's web address", "remote ls https://b.s3.amazonaws.com/", 2, "https://b.s3", hint="schemes=s3"),
    _entry(
        "a bucket with a secret in its address", "consume orders --remote s3://me:hunter2@b", 2, hint="not in the url"
    ),
    _entry(
        "a bucket's directory that does not exist",
        "init new --remote file:///no/such",
        1,
        "directory=/no/such",
        hint="correct the url",
    ),
    _entry("a file that is not there", "append orders no-such-file", 2, "no-such-file"),
    _entry("a file that is none of a log", "dump tiered.toml", 2, "path=tiered.toml"),
    _entry(
        "a directory where a manager is at work",
        "topic create new",
        5,
        "another manager",
        "data",
        hint="stop that manager",
        world="locked",
    ),
    _entry(
        "a topic altered where a manager is at work",
        "topic alter orders -X retention.ms=7d",
        5,
        "another manager",
        "data",
        hint="[topics.'orders'] of tiered.toml",
        world="locked",
    ),
    _entry(
        "a plan applied where a manager is at work",
        "apply old.json --yes",
        5,
        "another manager",
        "data",
        hint="applies due decisions automatically",
        world="locked",
    ),
    _entry(
        "compaction where a manager is at work",
        "compact latest",
        5,
        "another manager",
        "data",
        hint="--bucket",
        world="locked",
    ),
    _entry("a key that the ring has not", "rewrite recode orders --key-id k9", 2, "key_id=k9"),
    _entry("a key ring that is not there", "rotate-keys", 1, "key ring", "no-keys", world="no key ring"),
    _entry(
        "a port that is taken",
        "run --once --metrics :{port}",
        2,
        "port={port}",
        "option=--metrics",
        "address already in use",
        world="port taken",
    ),
    _entry(
        "a port that is taken, of pages",
        "web --listen :{port}",
        2,
        "port={port}",
        "option=--listen",
        world="port taken",
    ),
    _entry(
        "a certificate that is not there",
        "web --listen :0 --tls-cert no.pem",
        2,
        "certificate=no.pem",
        "no such file",
    ),
    _entry("a key without its certificate", "web --listen :0 --tls-key k.pem", 2, "--tls-key", hint="add --tls-cert"),
    _entry(
        "a log directory that is a file",
        "topic create new",
        1,
        "lines",
        hint="a file exists at the path of a directory",
        world="not a directory",
    ),
    _entry(
        "a bucket that does not exist",
        "init new --remote s3://orders-archive",
        1,
        "s3://orders-archive",
        hint="create the bucket, or correct the url",
        world="no bucket",
    ),
    _entry(
        "no credentials",
        "init new --remote s3://orders-archive",
        1,
        "no credentials",
        hint="AWS_PROFILE",
        world="no credentials",
    ),
    _entry(
        "access was denied or the credentials are wrong",
        "init new --remote s3://orders-archive",
        1,
        "s3://orders-archive",
        "InvalidAccessKeyId",
        hint="AWS_PROFILE",
        world="access was denied or the credentials are wrong",
    ),
    _entry(
        "an endpoint where nobody listens",
        "init new --remote s3://orders-archive",
        6,
        "endpoint=http://127.0.0.1:{port}",
        hint="check the endpoint",
        world="no endpoint",
    ),
    _entry(
        "an encrypted topic without its keys",
        "-C vault consume payments",
        1,
        "key_id=2026-a",
        hint="key_ring in [remote] of tiered.toml",
        world="encrypted",
    ),
    _entry("a port that is none", "run --once --metrics often", 2, "'often'", hint="[HOST]:PORT"),
)
RECORDS = (
    _entry(
        "Parquet files wanted at a path",
        "backfill orders --to out",
        2,
        "url=out",
        hint="file:///directory",
        world="no spark",
    ),
    _entry(
        "Spark is not installed",
        "backfill orders --to file:///srv/out --spark 'local[*]'",
        2,
        "pyspark",
        hint="tiered[spark]",
        world="no spark",
    ),
    _entry(
        "no Java for Spark",
        "backfill orders --to file:///srv/out --spark 'local[*]'",
        2,
        "found no Java >= 17",
        hint="apt-get install openjdk-17-jre-headless",
        world="no java",
    ),
    _entry(
        "a topic of a broker misspelt",
        "adopt kafka-logs orderz --once",
        1,
        "topic=orderz",
        "kafka-logs",
        hint="did_you_mean=orders",
        world="broker",
    ),
    _entry("a record without key for a compacted topic", "append latest lines", 2, "partition=latest/0", "has no key"),
    _entry("a separator that the line has not", "append orders lines -K #", 2, "line=1", "separator='#'"),
    _entry("lines that are no JSON", "append orders lines --jsonl", 2, "it is not JSON", "line=1"),
    _entry("a topic compacted that only deletes", "compact orders", 2, "topic=orders", hint="cleanup.policy"),
    _entry("a saved plan that is not there", "apply plan.jsn --yes", 1, "file=plan.jsn"),
    _entry("a saved plan that is damaged", "apply broken.json --yes", 2, "file=broken.json", hint="tiered plan --out"),
    _entry(
        "a saved plan after the state has changed",
        "apply old.json --yes",
        5,
        "orders",
        hint="run 'tiered plan --out' again",
        world="changed",
    ),
    _entry(
        "a directory given as a saved plan", "apply data --yes", 2, "file=data", "directory", hint="tiered plan --out"
    ),
    _entry("an empty file given as a saved plan", "apply nothing --yes", 2, "file=nothing", hint="tiered plan --out"),
    _entry(
        "a plan saved where there is no directory",
        "plan --out no/p.json",
        1,
        "file=no/p.json",
        hint="create it, or name another file",
    ),
    _entry("a plan saved as a directory", "plan --out data", 2, "file=data", hint="name a file in it"),
    _entry(
        "advice saved where there is no directory",
        "cost advise --out no/p.json",
        1,
        "file=no/p.json",
        hint="create it, or name another file",
    ),
    _entry("a plan saved under no name", "plan --out=", 2, "file=''", "the name is empty"),
    _entry(
        "a page saved where there is no directory",
        "cost simulate --html no/p.html",
        1,
        "file=no/p.html",
        hint="create it, or name another file",
    ),
    _entry("a page saved as a directory", "cost simulate --html data", 2, "file=data", hint="name a file in it"),
    _entry("a report written as a directory", "scrub --report data", 2, "file=data", hint="name a file in it"),
    _entry(
        "a report written to no directory",
        "scrub --report no/r.json",
        1,
        "file=no/r.json",
        hint="create it, or name another file",
    ),
    _entry("a directory given as a report", "repair data", 2, "path=data", hint="run 'tiered scrub --deep'"),
    _entry(
        "a directory given as a list of orphans",
        "gc --delete --list data",
        2,
        "path=data",
        hint="run 'tiered gc' first",
    ),
    _entry("orphans listed as a directory", "gc --list data", 2, "file=data", hint="name a file in it"),
    _entry(
        "a misspelt field of a line", "append orders json --jsonl", 2, "line=1", "'valu'", hint="did_you_mean=value"
    ),
    _entry(
        "a line of another partition than the one named",
        "append orders/1 json0 --jsonl",
        2,
        "line=1",
        "said=0 asked=1",
        hint="remove it from the lines",
    ),
    _entry("offsets in a file that is none", "delete-records --file lines --yes", 2, "file=lines", "it is not JSON"),
    _entry("a directory given as brokers", "placement data -p 1 -r 1", 2, "file=data", "directory"),
    _entry("a directory given as a token", "web --token-file data", 2, "file=data", "directory"),
    _entry("an empty file given as a token", "web --token-file nothing", 2, "file=nothing", hint="letters_at_least=16"),
    _entry("a file given as a broker's directory", "adopt lines --once", 2, "directory=", "lines", hint="log.dirs"),
    _entry(
        "a file to restore to", "restore orders --to lines --yes", 2, "directory=", "lines", hint="name a directory"
    ),
    _entry("a node initialised in a file", "init lines", 2, "directory=", "lines", hint="name a directory"),
    _entry("a restore to nowhere", "restore orders --to= --yes", 2, "--to", hint="name a directory"),
    _entry(
        "a transaction both aborted and committed",
        "transactions end orders/0 --producer-id 7 --abort --commit --yes",
        2,
        "--abort",
        hint="not both",
    ),
    _entry("a report that is not there", "repair no.json", 1, "path=no.json", hint="run 'tiered scrub --deep'"),
)
SECTIONS = {
    "Words": WORDS,
    "Topics, partitions, offsets": TOPICS,
    "Settings": SETTINGS,
    "Places": PLACES,
    "Records, plans, jobs": RECORDS,
}
MISTAKES = tuple(entry for entries in SECTIONS.values() for entry in entries)

_MANIFEST = """# Mistakes, and what is answered

Generated from the table in `tests/unit/support/mistakes.py`; `tests/unit/project/test_mistakes.py` makes each of
them. Every answer is one line on stderr, `error: what was attempted, what is wrong: key=value`, and an
[exit code](cli.md); nothing is written.
"""


def render() -> str:
    """The generated page."""
    parts = [_MANIFEST]
    for title, entries in SECTIONS.items():
        lines = [
            f"## {title}\n",
            "| mistake | for example | exit | the answer names | and says |",
            "|---|---|---|---|---|",
        ]
        lines += [_line(entry) for entry in entries]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(entry: Mistake) -> str:
    typed = " ".join(entry.words).replace("{port}", "9464")
    names = " ".join(f"`{name}`" for name in entry.names).replace("{port}", "9464")
    return f"| {entry.what} | `tiered {typed}` | {entry.code} | {names} | {f'`{entry.hint}`' if entry.hint else ''} |"


if __name__ == "__main__":
    PAGE.write_text(render())
