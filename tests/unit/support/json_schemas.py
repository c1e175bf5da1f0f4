"""The JSON schema of each command: the struct that the command prints, and the pages of ``docs/reference/schemas``.

Within one version fields are only added. A line of ``-o jsonl`` is an element of the list of rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import msgspec

# Page: the struct as ``module:name``, below `tiered` unless it is only for its page; the commands that print it.
_PAGES: dict[str, tuple[str, ...]] = {
    "adopt": ("cli.bucket.external_buckets:Adopted", "adopt"),
    "append": ("cli.data.append:Appended", "append"),
    "apply": ("cli.node.plan:PlanApplied", "apply"),
    "apply-advice": ("cli.node.plan:AdviceApplied", "apply"),
    "backfill": ("cli.bucket.pipeline:Backfilled", "backfill"),
    "backfill-dry-run": ("cli.bucket.pipeline:BackfillPlan", "backfill"),
    "bench": ("cli.node.bench:BenchMeasured", "bench"),
    "bench-dry-run": ("cli.node.bench:BenchPlanned", "bench"),
    "compact": ("cli.topics.compact:Compacted", "compact"),
    "compact-bucket": ("cli.topics.compact:BucketCompacted", "compact"),
    "compact-bucket-dry-run": ("cli.topics.compact:BucketCompactPlanned", "compact"),
    "compact-dry-run": ("cli.topics.compact:CompactEstimated", "compact"),
    "compaction-advise": ("cli.topics.compaction:CompactionAdvice", "compaction advise"),
    "compaction-metrics": ("cli.topics.compaction:CompactionMetrics", "compaction status"),
    "compaction-runs": ("cli.topics.compaction:CompactionRuns", "compaction status"),
    "compaction-status": ("cli.topics.compaction:CompactionStatus", "compaction status"),
    "config-explain": ("cli.node.generate:ConfigExplained", "config explain"),
    "config-export": ("cli.node.generate:ConfigExported", "config export"),
    "config-lint": ("cli.node.generate:ConfigLinted", "config lint"),
    "consume-line": ("cli.records:ConsumedRecord", "consume"),
    "cost-advise": ("cli.topics.cost:CostAdvise", "cost advise"),
    "cost-advise-plan": ("plans.saved_plan:PlanFile",),  # the file of --out
    "cost-show": ("cli.topics.cost:CostShow", "cost show"),
    "cost-simulate": ("cli.topics.cost:CostSimulate", "cost simulate"),
    "delete-records": ("cli.data.offsets:DeletedRecords", "delete-records"),
    "demo": ("cli.node.init:Demo", "demo"),
    "doctor": ("cli.node.init:Doctor", "doctor"),
    "dump-batches": ("cli.data.dump_printing:DumpedBatches", "dump"),
    "dump-checkpoint": ("dump_schemas:DumpedCheckpoint", "dump"),
    "dump-head": ("dump_schemas:DumpedManifest", "dump"),
    "dump-head-section": ("dump_schemas:DumpedManifestSection", "dump"),
    "dump-hex": ("cli.data.dump_printing:DumpedBytes", "dump"),
    "dump-index": ("dump_schemas:DumpedOffsets", "dump"),
    "dump-indexes": ("dump_schemas:DumpedBundle", "dump"),
    "dump-leader-epochs": ("dump_schemas:DumpedEpochs", "dump"),
    "dump-properties": ("dump_schemas:DumpedPairs", "dump"),
    "dump-records": ("cli.data.dump_printing:DumpedRecords", "dump"),
    "dump-records-line": ("inspect.dumping:RecordRow", "dump"),
    "dump-snapshot": ("dump_schemas:DumpedProducers", "dump"),
    "dump-timeindex": ("dump_schemas:DumpedTimes", "dump"),
    "dump-txnindex": ("dump_schemas:DumpedAborted", "dump"),
    "fork": ("cli.bucket.restore:Forked", "fork"),
    "gc": ("cli.bucket.scrub:OrphansListed", "gc"),
    "gc-delete": ("cli.bucket.scrub:OrphansDeleted", "gc"),
    "get-offsets": ("cli.data.offsets:Offsets", "get-offsets"),
    "group-describe": ("cli.topics.group:DescribedGroup", "group describe"),
    "group-list": ("cli.topics.group:Groups", "group list"),
    "group-reset-offsets": ("cli.topics.group:OffsetsReset", "group reset-offsets"),
    "import": ("cli.bucket.external_buckets:Imported", "import"),
    "import-dry-run": ("cli.bucket.external_buckets:ImportPlanned", "import"),
    "log-dirs": ("cli.node.log_dirs:LogDirs", "log-dirs"),
    "log-dirs-move": ("cli.node.log_dirs:LogDirsMove", "log-dirs move"),
    "log-dirs-partitions": ("cli.node.log_dirs:LogDirsPartitions", "log-dirs"),
    "pause": ("cli.topics.topic:Paused", "pause", "resume"),
    "pipeline-plan": ("cli.bucket.pipeline:PipelinePlan", "pipeline plan", "pipeline run"),
    "pipeline-run": ("cli.bucket.pipeline:PipelineRun", "pipeline run"),
    "placement": ("cli.node.log_dirs:Placement", "placement"),
    "plan": ("cli.node.plan:PlanShow", "plan"),
    "plan-summary": ("cli.node.plan:PlanSummary", "plan"),
    "progress": ("cli.render:ProgressEvent",),
    "remote-ls": ("cli.bucket.external_buckets:RemoteListed", "remote ls"),
    "repair": ("cli.bucket.scrub:Repaired", "repair"),
    "restore": ("cli.bucket.restore:Restored", "restore"),
    "restore-dry-run": ("cli.bucket.restore:RestorePlanned", "restore"),
    "rewrite": ("cli.bucket.rewrite:Rewritten", "rewrite merge", "rewrite recode"),
    "rewrite-copy": ("cli.bucket.rewrite:Copied", "rewrite copy"),
    "rewrite-dry-run": ("cli.bucket.rewrite:RewritePlanned", "rewrite copy", "rewrite merge", "rewrite recode"),
    "rewrite-redact": ("cli.bucket.redact:Redacted", "rewrite redact"),
    "rewrite-redact-dry-run": ("cli.bucket.redact:RedactPlanned", "rewrite redact"),
    "rewrite-redact-verify": ("cli.bucket.redact:KeysSearched", "rewrite redact"),
    "rotate-keys": ("cli.bucket.rewrite:KeysRotated", "rotate-keys"),
    "scrub": ("cli.bucket.scrub:Scrubbed", "scrub"),
    "status": ("cli.node.status:Status", "status"),
    "status-history": ("cli.node.status:StatusHistory", "status"),
    "status-partitions": ("cli.node.status:StatusByPartition", "status"),
    "topic": (
        "cli.topics.topic:Topics",
        "topic add-partitions",
        "topic alter",
        "topic create",
        "topic delete",
        "topic list",
    ),
    "topic-alter-dry-run": ("cli.topics.topic:AlteredTopic", "topic alter"),
    "topic-create-dry-run": ("cli.topics.topic:NewTopic", "topic create"),
    "topic-delete-dry-run": ("cli.topics.topic:DeletedTopic", "topic delete"),
    "topic-describe": ("cli.topics.topic:DescribedTopic", "topic describe"),
    "topic-describe-settings": ("cli.topics.topic:TopicSettings", "topic describe"),
    "transactions": ("cli.data.offsets:Transactions", "transactions list"),
    "verify": ("cli.node.verify:Verified", "verify"),
    "verify-remote": ("cli.node.verify:VerifiedRemote", "verify"),
    "view-build": ("cli.topics.compaction:ViewsBuilt", "view build"),
    "view-build-dry-run": ("cli.topics.compaction:ViewsPlanned", "view build"),
    "view-drop-dry-run": ("cli.topics.compaction:ViewsToDrop", "view drop"),
    "view-status": ("cli.topics.compaction:Views", "view status"),
}
# Every command that prints JSON: the pages of which one is its output, by options.
COMMANDS: dict[str, tuple[str, ...]] = {
    command: tuple(page for page, (_, *commands) in _PAGES.items() if command in commands)
    for command in sorted({each for _, *commands in _PAGES.values() for each in commands})
}


class _Schemas(Mapping[str, type[msgspec.Struct]]):
    """The structs by page; the module of a struct is imported when the struct is looked up."""

    def __getitem__(self, name: str) -> type[msgspec.Struct]:
        module, _, struct = _PAGES[name][0].partition(":")
        place = module if module == "dump_schemas" else f"tiered.{module}"
        found: type[msgspec.Struct] = getattr(importlib.import_module(place), struct)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_PAGES)

    def __len__(self) -> int:
        return len(_PAGES)


SCHEMAS = _Schemas()


def schema_text(name: str) -> str:
    """Return the JSON Schema of a command's output, as its page has it."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(SCHEMAS[name])), indent=1).decode() + "\n"
