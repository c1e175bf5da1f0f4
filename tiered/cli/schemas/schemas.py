"""What the JSON of a command holds: its schema, as types. Within one version fields are only ever added.

`tiered ... -o json` gives one object of the type in SCHEMAS; tests hold the commands' output against it, and the pages
``docs/reference/schemas/*.json`` (JSON Schema) are made from it. A line of ``-o jsonl`` is an element of its list.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from tiered.cli.schemas.schemas_base import Strict
from tiered.status.unknown_figures import UnreadPartitions


class PricesUsed(Strict):
    """Which price table the dollars are of."""

    as_of: str
    region: str


class TopicCost(Strict):
    """A topic's bill: dollars a month by kind, and what it is made from; null where a tier could not be read."""

    topic: str
    remote_bytes: int | None
    storage_dollars: float | None
    index_dollars: float | None
    waiting_dollars: float | None
    requests_dollars: float
    retrieval_dollars: float | None
    disk_dollars: float | None
    dollars_per_month: float | None
    double_storage_dollars: float | None
    idle_dollars: float | None
    segments: int | None
    local_bytes: int | None
    double_bytes: int | None
    shared_bytes: int | None
    puts_per_month: int
    gets_per_month: int
    lists_per_month: int
    bytes_in_per_month: int
    bytes_out_per_month: int
    data_puts_per_month: int
    data_gets_per_month: int
    data_bytes_in_per_month: int
    data_bytes_out_per_month: int
    metered_months: float


class CostShow(Strict):
    """``tiered cost show``."""

    schema_version: int
    prices: PricesUsed
    dollars_per_month: float | None
    metered_since_ms: int | None
    rate_since_ms: int | None
    unread: list[UnreadPartitions]
    topics: list[TopicCost]


class Lever(Strict):
    """A single change and what it saves a month."""

    changes: str
    saved_dollars: float


class Line(Strict):
    """A break-even line; `value` null is for ever."""

    what: str
    value: float | None
    limit: float | None
    unit: str
    verdict: str


class Basis(Strict):
    """What a topic's figures rest on; `warning` where that is too little to foretell a month from."""

    topic: str
    basis: list[str]
    warning: str | None


class CostVariant(Strict):
    """Dollars and requests a month under some settings; null is as it is."""

    changes: str
    stored_bytes: int
    storage_dollars: float
    requests_dollars: float
    retrieval_dollars: float
    early_deletion_dollars: float
    disk_dollars: float
    dollars_per_month: float
    saved_dollars: float
    retention_ms: int | None
    local_retention_ms: int | None
    segment_bytes: int | None
    part_bytes: int | None
    compression: str | None
    storage_class: str | None
    read_share: float | None
    index_dollars: float
    waiting_dollars: float
    double_storage_dollars: float
    idle_dollars: float
    local_bytes: int
    objects: int
    puts_per_month: int
    posts_per_month: int
    gets_per_month: int
    heads_per_month: int
    lists_per_month: int
    deletes_per_month: int
    bytes_in_per_month: int
    bytes_out_per_month: int


class CostSimulate(Strict):
    """``tiered cost simulate``; the first of `variants` is the settings as they are, in their steady state. `outside`
    is what no simulation counts."""

    schema_version: int
    prices: PricesUsed
    sensitivities: list[Lever]
    break_evens: list[Line]
    measured: list[Basis]
    outside: list[str]
    unread: list[UnreadPartitions]
    variants: list[CostVariant]


class Advice(Strict):
    """One piece of advice; `segments` 0 for a setting."""

    topic: str
    change: str
    size_bytes: int
    saved_dollars: float
    once_dollars: float
    payback_months: float | None
    reason: str
    segments: int
    command: str


class CostAdvise(Strict):
    """``tiered cost advise``."""

    schema_version: int
    prices: PricesUsed
    unread: list[UnreadPartitions]
    advice: list[Advice]
































class ProgressEvent(Strict):
    """A line on stderr under ``--progress json``: how far a command is, or with `message` words of it.

    `done` and `total` only grow; the last event of kind `progress` has `is_last`.
    """

    schema_version: int
    kind: Literal["progress", "message"]
    operation: str
    done: int
    total: int
    unit: str
    rate_per_second: float
    eta_ms: int | None
    waits_for: str | None
    is_last: bool
    message: str | None


_STRUCTS: dict[str, str] = {  # by the name of the page
    "adopt": "tiered.cli.bucket.adopt:Adopted",
    "append": "tiered.cli.data.append:Appended",
    "apply": "tiered.cli.node.apply:PlanApplied",
    "apply-advice": "tiered.cli.node.apply_advice:AdviceApplied",
    "backfill": "tiered.cli.data.backfill:Backfilled",
    "backfill-dry-run": "tiered.cli.data.backfill:BackfillPlan",
    "bench": "tiered.cli.node.bench:BenchMeasured",
    "bench-dry-run": "tiered.cli.node.bench:BenchPlanned",
    "compact": "tiered.cli.topics.compact:Compacted",
    "compact-bucket": "tiered.cli.bucket.compact_bucket:BucketCompacted",
    "compact-bucket-dry-run": "tiered.cli.bucket.compact_bucket:BucketCompactPlanned",
    "compact-dry-run": "tiered.cli.topics.compact:CompactEstimated",
    "compaction-advise": "tiered.cli.topics.compaction:CompactionAdvice",
    "compaction-metrics": "tiered.cli.topics.compaction:CompactionMetrics",
    "compaction-runs": "tiered.cli.topics.compaction:CompactionRuns",
    "compaction-status": "tiered.cli.topics.compaction:CompactionStatus",
    "config-explain": "tiered.cli.topics.config:ConfigExplained",
    "config-export": "tiered.cli.topics.config:ConfigExported",
    "config-lint": "tiered.cli.topics.config:ConfigLinted",
    "consume-line": "tiered.cli.records:ConsumedRecord",
    "cost-advise": "tiered.cli.schemas.schemas:CostAdvise",
    "cost-advise-plan": "tiered.cost.advice_file:SavedAdvice",  # the file of --out
    "cost-show": "tiered.cli.schemas.schemas:CostShow",
    "cost-simulate": "tiered.cli.schemas.schemas:CostSimulate",
    "delete-records": "tiered.cli.data.delete_records:DeletedRecords",
    "demo": "tiered.cli.node.demo:Demo",
    "doctor": "tiered.cli.node.doctor:Doctor",
    "dump-batches": "tiered.cli.data.dump_results:DumpedBatches",
    "dump-checkpoint": "tiered.cli.data.dump_results:DumpedCheckpoint",
    "dump-head": "tiered.cli.data.dump_results:DumpedManifest",
    "dump-head-section": "tiered.cli.data.dump_results:DumpedManifestSection",
    "dump-hex": "tiered.cli.data.dump_results:DumpedBytes",
    "dump-index": "tiered.cli.data.dump_results:DumpedOffsets",
    "dump-indexes": "tiered.cli.data.dump_results:DumpedBundle",
    "dump-leader-epochs": "tiered.cli.data.dump_results:DumpedEpochs",
    "dump-properties": "tiered.cli.data.dump_results:DumpedPairs",
    "dump-records": "tiered.cli.data.dump_results:DumpedRecords",
    "dump-records-line": "tiered.inspect.dump_rows:RecordRow",
    "dump-snapshot": "tiered.cli.data.dump_results:DumpedProducers",
    "dump-timeindex": "tiered.cli.data.dump_results:DumpedTimes",
    "dump-txnindex": "tiered.cli.data.dump_results:DumpedAborted",
    "fork": "tiered.cli.bucket.fork:Forked",
    "gc": "tiered.cli.bucket.gc:OrphansListed",
    "gc-delete": "tiered.cli.bucket.gc:OrphansDeleted",
    "get-offsets": "tiered.cli.data.get_offsets:Offsets",
    "import": "tiered.cli.bucket.import_:Imported",
    "import-dry-run": "tiered.cli.bucket.import_:ImportPlanned",
    "log-dirs": "tiered.cli.node.log_dirs:LogDirs",
    "log-dirs-move": "tiered.cli.node.log_dirs:LogDirsMove",
    "log-dirs-partitions": "tiered.cli.node.log_dirs:LogDirsPartitions",
    "pause": "tiered.cli.topics.pause:Paused",
    "pipeline-plan": "tiered.cli.bucket.pipeline:PipelinePlan",
    "pipeline-run": "tiered.cli.bucket.pipeline:PipelineRun",
    "placement": "tiered.cli.topics.placement:Placement",
    "plan": "tiered.cli.node.plan:PlanShow",
    "plan-summary": "tiered.cli.node.plan:PlanSummary",
    "progress": "tiered.cli.schemas.schemas:ProgressEvent",
    "remote-ls": "tiered.cli.bucket.remote:RemoteListed",
    "repair": "tiered.cli.bucket.repair:Repaired",
    "restore": "tiered.cli.bucket.restore:Restored",
    "restore-dry-run": "tiered.cli.bucket.restore:RestorePlanned",
    "rewrite": "tiered.cli.bucket.rewrite_tables:Rewritten",
    "rewrite-copy": "tiered.cli.bucket.rewrite_tables:Copied",
    "rewrite-dry-run": "tiered.cli.bucket.rewrite_tables:RewritePlanned",
    "rotate-keys": "tiered.cli.bucket.rotate_keys:KeysRotated",
    "scrub": "tiered.cli.bucket.scrub:Scrubbed",
    "status": "tiered.cli.node.status:Status",
    "status-history": "tiered.cli.node.status_history:StatusHistory",
    "status-partitions": "tiered.cli.node.status:StatusByPartition",
    "topic": "tiered.cli.topics.topic:Topics",
    "topic-alter-dry-run": "tiered.cli.topics.topic_dry_runs:AlteredTopic",
    "topic-create-dry-run": "tiered.cli.topics.topic_dry_runs:NewTopic",
    "topic-delete-dry-run": "tiered.cli.topics.topic_dry_runs:DeletedTopic",
    "topic-describe": "tiered.cli.topics.topic:DescribedTopic",
    "topic-describe-settings": "tiered.cli.topics.topic:TopicSettings",
    "transactions": "tiered.cli.data.transactions:Transactions",
    "verify": "tiered.cli.node.verify:Verified",
    "verify-remote": "tiered.cli.bucket.verify_remote:VerifiedRemote",
    "view-build": "tiered.cli.topics.view:ViewsBuilt",
    "view-build-dry-run": "tiered.cli.topics.view:ViewsPlanned",
    "view-drop-dry-run": "tiered.cli.topics.view:ViewsToDrop",
    "view-status": "tiered.cli.topics.view:Views",
}
# Every command that prints JSON: the pages of which one is its output, by options.
COMMANDS: dict[str, tuple[str, ...]] = {
    "adopt": ("adopt",),
    "append": ("append",),
    "apply": ("apply", "apply-advice"),
    "backfill": ("backfill", "backfill-dry-run"),
    "bench": ("bench", "bench-dry-run"),
    "compact": ("compact", "compact-dry-run", "compact-bucket", "compact-bucket-dry-run"),
    "compaction advise": ("compaction-advise",),
    "compaction status": ("compaction-status", "compaction-runs", "compaction-metrics"),
    "config explain": ("config-explain",),
    "config export": ("config-export",),
    "config lint": ("config-lint",),
    "consume": ("consume-line",),
    "cost advise": ("cost-advise",),
    "cost show": ("cost-show",),
    "cost simulate": ("cost-simulate",),
    "delete-records": ("delete-records",),
    "demo": ("demo",),
    "doctor": ("doctor",),
    "dump": tuple(name for name in _STRUCTS if name.startswith("dump-")),
    "fork": ("fork",),
    "gc": ("gc", "gc-delete"),
    "get-offsets": ("get-offsets",),
    "import": ("import", "import-dry-run"),
    "log-dirs": ("log-dirs", "log-dirs-partitions"),
    "log-dirs move": ("log-dirs-move",),
    "pause": ("pause",),
    "pipeline plan": ("pipeline-plan",),
    "pipeline run": ("pipeline-run", "pipeline-plan"),
    "placement": ("placement",),
    "plan": ("plan", "plan-summary"),
    "remote ls": ("remote-ls",),
    "repair": ("repair",),
    "restore": ("restore", "restore-dry-run"),
    "resume": ("pause",),
    "rewrite copy": ("rewrite-copy", "rewrite-dry-run"),
    "rewrite merge": ("rewrite", "rewrite-dry-run"),
    "rewrite recode": ("rewrite", "rewrite-dry-run"),
    "rotate-keys": ("rotate-keys",),
    "scrub": ("scrub",),
    "status": ("status", "status-partitions", "status-history"),
    "topic alter": ("topic", "topic-alter-dry-run"),
    "topic create": ("topic", "topic-create-dry-run"),
    "topic delete": ("topic", "topic-delete-dry-run"),
    "topic describe": ("topic-describe", "topic-describe-settings"),
    "topic list": ("topic",),
    "transactions list": ("transactions",),
    "verify": ("verify", "verify-remote"),
    "view build": ("view-build", "view-build-dry-run"),
    "view drop": ("view-drop-dry-run",),
    "view status": ("view-status",),
}


class _Schemas(Mapping[str, type[msgspec.Struct]]):
    """The structs by page; the module of a struct is imported when the struct is looked up."""

    def __getitem__(self, name: str) -> type[msgspec.Struct]:
        module, _, struct = _STRUCTS[name].partition(":")
        found: type[msgspec.Struct] = getattr(importlib.import_module(module), struct)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_STRUCTS)

    def __len__(self) -> int:
        return len(_STRUCTS)


SCHEMAS = _Schemas()


def schema_text(name: str) -> str:
    """Return the JSON Schema of a command's output, as its page has it."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(SCHEMAS[name])), indent=1).decode() + "\n"
