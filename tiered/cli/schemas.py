"""The JSON schema of each command: the struct that the command prints, and the pages of ``docs/reference/schemas``.

Within one version fields are only added. A line of ``-o jsonl`` is an element of the list of rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import msgspec

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
    "cost-advise": "tiered.cli.cost.cost:CostAdvise",
    "cost-advise-plan": "tiered.cost.advice_file:SavedAdvice",  # the file of --out
    "cost-show": "tiered.cli.cost.cost:CostShow",
    "cost-simulate": "tiered.cli.cost.cost_simulate:CostSimulate",
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
    "progress": "tiered.cli.progress_event:ProgressEvent",
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
