"""Table of all alerts: condition and runbook. Rules and runbook pages are generated from it.

Expressions may name only metrics of `tiered.observe.metric_table`; a test checks it. Limits that depend on a deployment
are arguments of `alert_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RUNBOOKS_URL = "docs/runbooks"


class Severity(Enum):
    """Urgency: immediate action, or a ticket."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. `expr` is PromQL, with placeholders such as ``{at_risk_bytes}`` for limits.

    `lasts` is how long `expr` must hold. The other fields are the runbook: `says` is the condition in words, `means`
    its effect on the data, `look` the commands for diagnosis, `check` the facts to find with them, `mend` the remedies
    in order, `over` the sign that the problem has ended.
    """

    name: str
    expr: str
    lasts: str
    severity: Severity
    summary: str
    says: str
    means: str
    look: tuple[str, ...]
    check: tuple[str, ...]
    mend: tuple[str, ...]
    over: str

    @property
    def page(self) -> str:
        """Name of the runbook page: ``TieredCopyLagGrows`` is ``copy-lag-grows``."""
        words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in self.name)
        return words.removeprefix("-tiered-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that depend on the deployment."""

    at_risk_bytes: int = 50 << 30
    copy_lag_s: int = 3600
    paused_s: int = 86_400
    free_share: float = 0.1
    store_failure_share: float = 0.05


ALERTS: tuple[Alert, ...] = (
    Alert(
        name="TieredCopyLagGrows",
        expr="max by (topic) (tiered_remote_copy_lag_seconds) > {copy_lag_s} "
        "unless on (topic) max by (topic) (tiered_remote_copy_paused) == 1",
        lasts="15m",
        severity=Severity.TICKET,
        summary="Closed segments of {{ $labels.topic }} have waited for their upload for {{ $value | "
        "humanizeDuration }}",
        says=(
            "Closed segments of a topic have been due for upload for more than an hour. Segments of a paused topic "
            "are not counted."
        ),
        means=(
            "Segments are closed faster than they are uploaded, or uploads fail. No record is lost and readers are "
            "served. The disk fills, and the waiting segments exist on this disk only."
        ),
        look=("tiered status --section lag", "tiered plan --summary", "tiered doctor --problems"),
        check=(
            "`tiered status` names the error of the store and its start, if uploads fail.",
            "`tiered plan --summary` counts the segments that wait, and the reasons.",
            "`tiered compaction status` shows whether a compacted topic waits for its cleaner.",
            "Compare `remote.log.manager.copy.max.bytes.per.second` with the append rate.",
        ),
        mend=(
            "If the store refuses or throttles: [store fails](store-fails.md).",
            "If the copy rate is below the append rate: raise `remote.log.manager.copy.max.bytes.per.second`.",
            "If a compacted topic waits for its cleaner: [cleaner stuck](cleaner-stuck.md).",
            "If there are many small segments: raise `segment.bytes`. Each segment costs two uploads and a commit.",
        ),
        over="UPLOAD LAG in `tiered status` falls, and no segment has been due for more than an hour.",
    ),
    Alert(
        name="TieredNoUploadFinishes",
        # Due segments only: a segment that waits for its lag or its cleaner is normal. Counted are started uploads less
        # failed ones, not bytes: refused bytes are sent again and again.
        expr="max(tiered_remote_copy_lag_seconds unless tiered_remote_copy_paused == 1) > 1800 "
        "and sum(increase(tiered_remote_copy_requests_total[30m])) "
        "- sum(increase(tiered_remote_copy_errors_total[30m])) < 1",
        lasts="15m",
        severity=Severity.PAGE,
        summary="Segments are due for upload, and for half an hour no upload has finished",
        says=(
            "Segments have been due for upload for more than half an hour, and no upload has succeeded in this time."
        ),
        means=(
            "Uploads do not start, hang or fail. Local retention drops no segment before it is in the bucket, so "
            "the disk fills."
        ),
        look=("tiered status", "tiered doctor --problems"),
        check=(
            "`tiered status` shows the time of the last maintenance round, and the error of the store with its start.",
            "`tiered_copier_oldest_turn_seconds` is large when a call to the store hangs.",
            "`tiered doctor --problems`, run by the user of the manager with its environment, shows whether the"
            " store can be reached.",
        ),
        mend=(
            "If no manager runs: [no rounds](no-rounds.md).",
            "If the store refuses uploads: [store fails](store-fails.md).",
            "If the doctor does not reach the store: repair the network or the credentials.",
            "Otherwise restart the manager. An interrupted upload starts again under a new name; `tiered gc` "
            "finds the objects of the first one.",
        ),
        over="`tiered_remote_copy_requests_total` rises faster than `tiered_remote_copy_errors_total`.",
    ),
    Alert(
        name="TieredUploadsPaused",
        expr="max by (topic) (tiered_remote_copy_paused_seconds) > {paused_s}",
        lasts="5m",
        severity=Severity.TICKET,
        summary="Uploads of {{ $labels.topic }} have been paused for {{ $value | humanizeDuration }}",
        says="Uploads of a topic have been paused for more than a day.",
        means=(
            "`tiered pause` stopped the uploads. No record is lost, and no segment is dropped before it is in the "
            "bucket. The disk fills, and the waiting segments exist on this disk only."
        ),
        look=("tiered pause --list", "tiered status --section lag"),
        check=(
            "`tiered pause --list` shows the pauses with their reasons.",
            "`tiered status --section lag` shows the bytes that wait and the bytes at risk.",
        ),
        mend=(
            "If the reason no longer holds: `tiered resume`, or `tiered resume TOPIC`. Uploads continue where "
            "they stopped.",
            "If the pause must last: check the bytes [at risk](at-risk-bytes.md) and the free space ([disk "
            "full](disk-full.md)).",
        ),
        over="`tiered pause --list` no longer names the topic.",
    ),
    Alert(
        name="TieredAtRiskBytes",
        expr="sum(tiered_unreplicated_bytes) > {at_risk_bytes}",
        lasts="15m",
        severity=Severity.TICKET,
        summary="{{ $value | humanize1024 }}B exist on this disk only",
        says="More than 50 GiB exist on this disk only.",
        means=(
            "A lost disk would lose these bytes. They are active segments, and closed segments that are not in the "
            "bucket."
        ),
        look=("tiered status -p --section lag",),
        check=(
            "`tiered status -p --section lag` shows lag and risk of each partition.",
            "`tiered topic describe NAME --settings` shows `remote.storage.enable` and `segment.ms`.",
        ),
        mend=(
            "If closed segments wait: [copy lag grows](copy-lag-grows.md).",
            "If active segments are large: lower `segment.ms` or `segment.bytes` in `tiered.toml`, so that they"
            " are closed sooner. A running manager reads the file again by itself.",
            "If a topic should be tiered and is not: set `remote.storage.enable=true`.",
        ),
        over="AT RISK in `tiered status` is below the limit.",
    ),
    Alert(
        name="TieredStoreFails",
        expr='sum(rate(tiered_objstore_failures_total{{class!="InvalidRequest"}}[10m])) '
        "/ sum(rate(tiered_objstore_operations_total[10m])) > {store_failure_share}",
        lasts="10m",
        severity=Severity.TICKET,
        summary="{{ $value | humanizePercentage }} of the calls to the store fail",
        says="More than 5 % of the calls to the store have failed in the last ten minutes.",
        means=(
            "Each failed call was retried until its deadline. Uploads and deletions wait, and reads of the bucket "
            "fail. No local data is lost."
        ),
        look=("tiered doctor --problems", "tiered status"),
        check=(
            "`tiered doctor --problems` tries every kind of call, and names the refused ones.",
            "`tiered status` names the error and its start.",
            "The label `class` of `tiered_objstore_failures_total` shows the kind of error.",
        ),
        mend=(
            "`AccessDenied`: correct the credentials or the policy; the credentials may have expired.",
            "`Unavailable`: check the network and the endpoint. If the store throttles, lower "
            "`remote.log.manager.copy.max.bytes.per.second` and the rate of fetches, or ask the provider for a "
            "higher limit.",
            "`Corrupt`: [damage](corruption.md).",
            "If the provider is down: wait. The manager continues by itself. Watch the [free space](disk-full.md).",
        ),
        over="Fewer than 5 % of the calls fail for ten minutes.",
    ),
    Alert(
        name="TieredCorruption",
        expr='sum(tiered_partition_problems{{class="Corrupt"}}) > 0',
        lasts="0m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions met bytes that contradict their checksum",
        says="A partition found bytes that contradict their checksum.",
        means=(
            "The damaged bytes were not returned to a reader. The partition serves its sound records and copies "
            "nothing more."
        ),
        look=("tiered status", "tiered verify --deep", "tiered scrub --deep"),
        check=(
            "`tiered status` names the partition and the file or object.",
            "`tiered verify --deep` checks the disk, and names file and offsets.",
            "`tiered scrub --deep` checks the bucket, and writes a report.",
            "The disk's own errors are in SMART and in the kernel's log.",
        ),
        mend=(
            "Copy the damaged files first: they are the evidence.",
            "Damage on the disk: replace the file by a copy, byte for byte (a snapshot of the disk, a replica, "
            "the Kafka broker of origin). The partition continues with the next round, without a restart.",
            "Damage in the bucket: `tiered repair REPORT --dry-run`, then without `--dry-run`.",
            "A manifest that readers refuse (`tiered scrub` names the place in it): stop the writer, and put "
            "the object back from the bucket's versions or a backup, byte for byte. Nothing was written or "
            "deleted on the basis of the damaged manifest.",
            "Replace a disk that reports errors.",
        ),
        over="`tiered status` names no corrupt partition, and a deep check of the damaged tier finds nothing.",
    ),
    Alert(
        name="TieredUnopened",
        expr='tiered_partitions{{state="unopened"}} > 0',
        lasts="5m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions could not be opened",
        says="Partitions could not be opened for five minutes.",
        means=(
            "These partitions take no records, are not read from the disk, and are not uploaded. Other partitions "
            "continue. No record is lost: the files are unchanged."
        ),
        look=("tiered status", "tiered doctor --problems"),
        check=("`tiered status` names each partition and the cause.",),
        mend=(
            "`InvalidRequest`: correct the refused setting in `tiered.toml` or with `tiered topic alter`, and "
            "restart the manager.",
            "`AccessDenied`: return the files to the user of the manager, and restart it.",
            "Damage: [corruption](corruption.md).",
            "A failed log directory: [log dir offline](log-dir-offline.md).",
            "No space: [disk full](disk-full.md). The manager opens the partitions by itself when there is space.",
        ),
        over="`tiered status` names no unopened partition.",
    ),
    Alert(
        name="TieredHalted",
        expr="tiered_halted > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions are stopped: another writer took over, or the tiers contradict each other",
        says="A partition is stopped: another writer took it over, or its two tiers contradict each other.",
        means=(
            "Another writer committed to the bucket. This manager stops writing to the partition, because two "
            "writers would lose records. A manager that is fenced while it runs ends with exit 5 (then [no "
            "rounds](no-rounds.md) fires too). A manager that finds the other writer at its start continues with "
            "its other partitions."
        ),
        look=("tiered status", "tiered doctor --problems"),
        check=(
            "`tiered status` names the partition and the relation of its tiers.",
            "The newest manifest names the other writer (`writer_id`): see [the commit "
            "protocol](../explanation/commit-protocol.md).",
            "Check whether a copy of this machine, or an old machine, was started by mistake.",
        ),
        mend=(
            "Stop one of the two writers. Keep the one with the newer records.",
            "Restart the remaining manager. It takes a partition back if its log holds no record that the "
            "bucket lacks.",
            "If its log holds such records, the partition stays refused. `tiered run --take-over` makes this "
            "manager the writer again.",
            "If it is refused as `diverged` or `unproven`: each side holds, or may hold, records that the other"
            " lacks. No record is dropped. The message names the offsets, and under `rescue` the command that "
            "prints the records of this disk. Append the records that are needed at the writer. Then stop the "
            "manager, move the partition's directory out of the log directory, and start again: the log begins "
            "at the bucket's end. All relations: [diverged logs](../explanation/diverged-logs.md).",
        ),
        over="`tiered status --section sync` shows `in sync` or `behind`, and only one manager writes the partition.",
    ),
    Alert(
        name="TieredBucketLost",
        expr="tiered_remote_lost > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions have records in a bucket that does not hold them: it is lost or wrong",
        says="The bucket lacks records that this disk has dropped.",
        means=(
            "The disk dropped the records because the bucket had them. The bucket was replaced, emptied, or "
            "restored from an old backup, or `url` names another bucket. Records that are still on this disk stay "
            "there. The partition takes no records, and nothing is written to the bucket."
        ),
        look=("tiered status", "tiered doctor --problems"),
        check=(
            "`tiered status` names the partitions and the offsets.",
            "Compare `url` in `[remote]` of `tiered.toml` with the bucket that was used before, with its prefix"
            " and its region.",
            "Check whether the bucket or its mount was replaced, or restored from a backup.",
        ),
        mend=(
            "If `url` is wrong: correct it and restart the manager.",
            "If the bucket or its mount was replaced: restore the former one from the mount, object versions, a"
            " replica or a backup. Restart the manager. It continues when the bucket holds the records.",
            "If the bucket was restored from an older backup: its newest manifest ends before the first record "
            "of this disk. Records between the two are lost unless another copy exists. The message names the "
            "offsets.",
            "If the bucket cannot be restored: `tiered consume TOPIC/PARTITION --local -o jsonl` prints the "
            "records of this disk. Create the topic in another directory, and append them there. Do not delete "
            "this directory before.",
        ),
        over="`tiered status --section sync` shows `in sync` or `behind` for the partition.",
    ),
    Alert(
        name="TieredDiskFull",
        expr="tiered_log_dir_free_bytes / tiered_log_dir_total_bytes < {free_share} "
        "or predict_linear(tiered_log_dir_free_bytes[6h], 4 * 3600) < 0",
        lasts="10m",
        severity=Severity.PAGE,
        summary="{{ $labels.directory }} is nearly full, or will be within four hours",
        says="The file system of a log directory has less than 10 % free space, or will be full within four hours.",
        means=(
            "A full disk refuses appends. Existing records stay readable. Uploads free space again if they continue."
        ),
        look=("tiered log-dirs", "tiered plan --summary", "tiered status --section local,lag"),
        check=(
            "`tiered log-dirs` shows the free space of each directory.",
            "`tiered plan --summary` shows the bytes that the next round drops.",
            "`tiered status --section local,lag` shows the largest topics, and the segments that wait for upload.",
        ),
        mend=(
            "If segments wait for upload: [copy lag grows](copy-lag-grows.md). No segment is dropped before it "
            "is in the bucket.",
            "Lower `local.retention.ms` or `local.retention.bytes` of the largest topics in `tiered.toml`. A "
            "running manager reads the file again, and the next round applies it.",
            "Move partitions to another directory: stop the manager, `tiered log-dirs move`, start it.",
            "Never delete segment files by hand.",
        ),
        over="The free space is above 10 %, and the forecast for four hours is above zero.",
    ),
    Alert(
        name="TieredDeleteLag",
        expr="max by (topic) (tiered_remote_delete_overdue_seconds) > 86400",
        lasts="1h",
        severity=Severity.TICKET,
        summary="Objects of {{ $labels.topic }} should have been deleted a day ago",
        says="Pending deletes of a topic are overdue by more than a day.",
        means="No manifest entry names these objects and no reader needs them, but they cost money.",
        look=("tiered doctor --problems", "tiered plan"),
        check=(
            "`tiered doctor --problems` counts the pins of readers, names the pins that last for another week, "
            "and tries a deletion (`s3:DeleteObject`).",
            "`tiered plan` lists the deletions of the next round.",
            "`tiered_expirer_oldest_turn_seconds` is large when a call to the store hangs.",
        ),
        mend=(
            "If a reader's pin blocks the deletion: wait for its expiry. If no reader uses the pin, delete the "
            "object that the doctor names.",
            "If the user may not delete, or an object lock forbids it: correct the policy.",
            "If `tiered_expirer_oldest_wait_seconds` grows with very many partitions: raise "
            "`remote.log.manager.expiration.thread.pool.size`.",
            "If no manager runs: [no rounds](no-rounds.md).",
            "Objects that no manifest names at all are orphans: `tiered gc`.",
        ),
        over="The next rounds delete the objects, and `tiered_remote_delete_overdue_seconds` is below a day.",
    ),
    Alert(
        name="TieredNoRounds",
        # No time of day: the machine's clock may jump, be held, or differ from Prometheus'.
        expr="tiered_last_round_age_seconds > 1800 or absent(tiered_last_round_age_seconds)",
        lasts="5m",
        severity=Severity.PAGE,
        summary="No maintenance round has ended for half an hour, or no manager exports its metrics",
        says="No maintenance round has ended for half an hour, or no manager exports its metrics.",
        means=(
            "Nothing is uploaded, dropped, cleaned or deleted. A round with very many uploads may take long. If one"
            " of several managers is missing, only Prometheus' own metric `up` shows it."
        ),
        look=("tiered status", "journalctl -u tiered"),
        check=(
            "`journalctl -u tiered`: the last line gives the cause if the process has ended.",
            "`tiered status` shows the time of the last round.",
            "`tiered_objstore_operations_total` rises while a long round uploads.",
        ),
        mend=(
            "If the process has ended: exit 5 is [another writer](halted.md), 4 [damage](corruption.md), 2 a "
            "setting. systemd does not restart it after these codes.",
            "If the round uploads: wait, or raise the rate.",
            "If the process hangs: restart it. systemd's watchdog does so when `WatchdogSec` is set (`tiered "
            "generate systemd`).",
            "A restart is always safe. After exit 5 the manager does not take back a partition whose log holds "
            "records that the bucket lacks: [another writer](halted.md).",
        ),
        over="`tiered status` shows a round that ended in the last minutes.",
    ),
    Alert(
        name="TieredLogDirOffline",
        expr="tiered_log_dir_offline > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="The log directory {{ $labels.directory }} has failed",
        says="A log directory has failed.",
        means=(
            "Its disk returned an error. Calls to its partitions are refused; other directories continue. The "
            "directory stays offline until the next start, even if the disk answers again."
        ),
        look=("tiered status", "tiered log-dirs"),
        check=(
            "`tiered status` names the error that the manager got.",
            "`tiered log-dirs` shows whether the disk answers now.",
            "The kernel's log shows errors of the disk.",
        ),
        mend=(
            "A loose cable or a lost mount: repair it and restart. The logs are recovered.",
            "A dead disk: mount an empty disk in its place and create the directory by hand. Partitions begin "
            "at the bucket's end. Records that only the dead disk had are lost.",
        ),
        over="`tiered log-dirs` shows the directory as `online` after a restart.",
    ),
    Alert(
        name="TieredCleanerStuck",
        expr="tiered_cleaner_uncleanable_partitions > 0",
        lasts="30m",
        severity=Severity.TICKET,
        summary="{{ $value }} compacted logs cannot be cleaned",
        says="Compacted logs have been uncleanable for half an hour.",
        means="These logs grow. Segments that are not cleaned are not uploaded either.",
        look=("tiered compaction status", "tiered compaction advise"),
        check=(
            "`tiered compaction status` prints the cause for each log.",
            "`tiered compaction advise` prints settings that prevent cleaning.",
        ),
        mend=(
            "Damaged batches: [corruption](corruption.md).",
            "No space: [disk full](disk-full.md).",
            "The cleaner tries an uncleanable log again after `log.cleaner.uncleanable.retry.ms` (10 minutes). "
            "With the manager stopped, `tiered compact TOPIC` tries at once.",
        ),
        over="`tiered compaction status` shows no uncleanable log.",
    ),
    Alert(
        name="TieredClockJumped",
        expr="abs(tiered_clock_jump_seconds) > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="The machine's clock has jumped by {{ $value | humanizeDuration }}",
        says="The machine's clock has jumped, and the manager does not trust the new time yet.",
        means=(
            "The background work continues with the time before the jump, so that no record expires because of a "
            "wrong clock. The new time is accepted after `clock.jump.hold.ms`. If the store's clock agrees with the "
            "machine, the new time is accepted at once; while the store's clock disagrees, it is never accepted. "
            "Records appended in this time may have wrong timestamps, and S3 refuses requests of a machine with a "
            "wrong clock."
        ),
        look=("tiered doctor", "timedatectl"),
        check=(
            "`tiered doctor` compares this clock with the store's.",
            "`timedatectl` shows whether the clock is synchronised.",
        ),
        mend=(
            "If the new time is wrong: set the clock, and check the time server. The new time is used again at once.",
            "If the new time is right (the clock was wrong when the machine started) and there is no store to "
            "ask: restart the manager with `-X clock.jump.hold.ms=0`. Omit the option at later starts.",
            "If the store's clock is wrong: correct the store's clock.",
            "Records that were appended with timestamps far in the future stay until that time: their segments "
            "expire by their newest record.",
        ),
        over="`tiered_clock_jump_seconds` is 0.",
    ),
    Alert(
        name="TieredCopiersBusy",
        expr="tiered_copier_oldest_wait_seconds > 900",
        lasts="15m",
        severity=Severity.TICKET,
        summary="A partition has waited {{ $value | humanizeDuration }} for a task thread of the store",
        says="A partition has waited for more than 15 minutes for a task thread.",
        means=(
            "All threads that wait for the store are busy. Uploads, expiry and deletion are late. No record is "
            "lost, but the disk fills."
        ),
        look=("tiered status --section lag", "tiered plan --summary"),
        check=(
            "`tiered_copier_oldest_turn_seconds` and `tiered_objstore_duration_seconds` show whether the store "
            "is slow or hangs.",
            "`tiered status --section lag` and `tiered plan --summary` show the number of partitions and "
            "segments that wait.",
        ),
        mend=(
            "If the store is slow or hangs: [store fails](store-fails.md).",
            "If the store is fast and there are many partitions: raise "
            "`remote.log.manager.copier.thread.pool.size` and restart.",
            "If the copy rate is the limit: raise `remote.log.manager.copy.max.bytes.per.second`.",
        ),
        over="`tiered_copier_oldest_wait_seconds` is below 900.",
    ),
    Alert(
        name="TieredRoundsFail",
        expr="increase(tiered_round_failures_total[30m]) > 3",
        lasts="5m",
        severity=Severity.PAGE,
        summary="Maintenance rounds fail",
        says="More than three maintenance rounds have failed in half an hour.",
        means=(
            "The disk or the store refuses an operation that every round needs: a checkpoint cannot be written, or "
            "a manifest cannot be read."
        ),
        look=("tiered status", "tiered doctor --problems", "journalctl -u tiered"),
        check=(
            "`tiered status` names the error and its start. If the disk refuses even this report, `tiered "
            "status` prints the age of the last report.",
            "In that case the error is in the log of the process (`journalctl -u tiered`) and at `/health`.",
        ),
        mend=(
            "No space: [disk full](disk-full.md).",
            "A failing disk: [log dir offline](log-dir-offline.md).",
            "The store: [store fails](store-fails.md).",
        ),
        over="Maintenance rounds end without an error for half an hour.",
    ),
)
