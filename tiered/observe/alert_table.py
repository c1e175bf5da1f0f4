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

    `lasts` is how long `expr` must hold. `means`, `look` and `mend` are the runbook: the meaning and the effect on the
    data, commands for diagnosis, and remedies in order.
    """

    name: str
    expr: str
    lasts: str
    severity: Severity
    summary: str
    means: str
    look: tuple[str, ...]
    mend: tuple[str, ...]

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
        means="Segments are closed faster than they are uploaded, or uploads fail. Nothing is lost and readers "
        "are served, "
        "but the disk fills, and what waits exists on this disk only.",
        look=("tiered status --section lag", "tiered plan --summary", "tiered doctor --problems"),
        mend=(
            "Does the store refuse or throttle? `tiered status` names the error and since when; see "
            "[store fails](store-fails.md).",
            "Is `remote.log.manager.copy.max.bytes.per.second` below what comes in? Raise it.",
            "Is a compacted topic waiting for its cleaner? `tiered compaction status`; see [cleaner "
            "stuck](cleaner-stuck.md).",
            "Many small segments? Raise `segment.bytes`: each costs two uploads and a commit.",
        ),
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
        summary="Segments are due for upload, and for half an hour none has gone",
        means="Uploads do not begin or hang. Local retention drops nothing that is not in the bucket, so the "
        "disk fills.",
        look=("tiered status", "tiered doctor --problems"),
        mend=(
            "Is a manager at work? `tiered status` says when the last round was; see [no rounds](no-rounds.md). What "
            "hangs in the store is in `tiered_copier_oldest_turn_seconds`.",
            "Are they refused? `tiered status` names the error and since when; see [store fails](store-fails.md).",
            "Does the doctor reach the store, with the same user and environment? Mend network or credentials.",
            "Restart the manager: an upload that it was killed in is begun anew, and leaves only what `tiered "
            "gc` finds.",
        ),
    ),
    Alert(
        name="TieredUploadsPaused",
        expr="max by (topic) (tiered_remote_copy_paused_seconds) > {paused_s}",
        lasts="5m",
        severity=Severity.TICKET,
        summary="Uploads of {{ $labels.topic }} have been paused for {{ $value | humanizeDuration }}",
        means="Somebody paused them by `tiered pause`. Nothing is lost, and nothing leaves the disk that is not in the "
        "bucket: so the disk fills, and what waits exists on this disk only.",
        look=("tiered pause --list", "tiered status --section lag"),
        mend=(
            "Is the reason over? `tiered resume`, or `tiered resume TOPIC`; uploads go on from where they stood.",
            "Is it to last? See how much is at risk, and that the disk has room for it: [at-risk bytes]"
            "(at-risk-bytes.md), [disk full](disk-full.md).",
        ),
    ),
    Alert(
        name="TieredAtRiskBytes",
        expr="sum(tiered_unreplicated_bytes) > {at_risk_bytes}",
        lasts="15m",
        severity=Severity.TICKET,
        summary="{{ $value | humanize1024 }}B exist on this disk only",
        means="A lost disk would lose so much: active segments, and closed ones that are not in the bucket.",
        look=("tiered status -p --section lag",),
        mend=(
            "Is it lag? See [copy lag grows](copy-lag-grows.md).",
            "Is it active segments? Lower `segment.ms` or `segment.bytes` in `tiered.toml`, so that they close sooner; "
            "a manager at work reads it again by itself.",
            "Is a topic not tiered that should be? `tiered topic describe NAME --settings`, `remote.storage.enable`.",
        ),
    ),
    Alert(
        name="TieredStoreFails",
        expr='sum(rate(tiered_objstore_failures_total{{class!="InvalidRequest"}}[10m])) '
        "/ sum(rate(tiered_objstore_operations_total[10m])) > {store_failure_share}",
        lasts="10m",
        severity=Severity.TICKET,
        summary="{{ $value | humanizePercentage }} of the calls to the store fail",
        means="Each call was tried again until its deadline and failed all the same. Uploads and deletions "
        "wait, reads of the "
        "bucket fail; the disk keeps what it has.",
        look=("tiered doctor --problems", "tiered status"),
        mend=(
            "By class: `AccessDenied` is credentials or policy (expired?), `Unavailable` the network, the "
            "endpoint or "
            "throttling, `Corrupt` is [damage](corruption.md).",
            "Throttled? Lower `remote.log.manager.copy.max.bytes.per.second` and `fetch`, or ask the provider "
            "for more.",
            "The provider is down? Wait: the manager goes on by itself. Watch [disk full](disk-full.md) meanwhile.",
        ),
    ),
    Alert(
        name="TieredCorruption",
        expr='sum(tiered_partition_problems{{class="Corrupt"}}) > 0',
        lasts="0m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions met bytes that contradict their checksum",
        means="Damaged bytes were found and not passed on. The partition serves what is whole and copies nothing more.",
        look=("tiered status", "tiered verify --deep", "tiered scrub --deep"),
        mend=(
            "Keep the evidence: copy the files that are named before anything else.",
            "On the disk: `tiered verify --deep` names file and offsets. Put the file back from a copy (a snapshot of "
            "the disk, a replica's, the Kafka broker that it came from), byte for byte; the partition goes on with "
            "the next round, without a restart.",
            "In the bucket: `tiered scrub --deep`, then `tiered repair REPORT --dry-run`, then without.",
            "A manifest that readers refuse (`tiered scrub` names the place in it): stop the writer, and put the "
            "object back from the bucket's versions or a backup, byte for byte. Nothing was written or deleted by it.",
            "Look at the disk's own errors (SMART, the kernel's log) and replace it if it has any.",
        ),
    ),
    Alert(
        name="TieredUnopened",
        expr='tiered_partitions{{state="unopened"}} > 0',
        lasts="5m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions could not be opened",
        means="They take no records, are not read from the disk, and nothing of them is uploaded. The others go on. "
        "Nothing of theirs is lost: the files lie as they were.",
        look=("tiered status", "tiered doctor --problems"),
        mend=(
            "`tiered status` names each of them and why. A setting that is refused (`InvalidRequest`): mend it in "
            "`tiered.toml` or with `tiered topic alter`, and restart the manager.",
            "No permission (`AccessDenied`): give the files back to the user that the manager runs as, and restart it.",
            "Damaged: [corruption](corruption.md). A log directory that has failed: "
            "[log dir offline](log-dir-offline.md). No room: [disk full](disk-full.md); they are opened by themselves "
            "once there is some.",
        ),
    ),
    Alert(
        name="TieredHalted",
        expr="tiered_halted > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions are stopped: another writer has them, or the tiers contradict each other",
        means="Somebody else committed to the bucket. This manager writes nothing more to the partition, on "
        "purpose: two writers would lose records. One that meets it at work ends with exit 5 "
        "([no rounds](no-rounds.md) fires then); one that meets it at its start goes on with its other partitions.",
        look=("tiered status", "tiered doctor --problems"),
        mend=(
            "Find the other writer: the newest head names it (`writer_id`), see "
            "[the commit protocol](../explanation/commit-protocol.md).",
            "Stop one of the two. Was a copy of this machine started, or an old one by mistake? Keep the one "
            "with the newer records.",
            "Restart the one that stays. It takes the partition back where it holds nothing that the bucket lacks. A "
            "log that holds such records stays refused: `tiered run --take-over` makes it the writer again.",
            "Is it refused as `diverged` or `unproven`? Each side holds records that the other lacks, or may hold "
            "them. No record is dropped. The message names the offsets, and under `rescue` the command that prints "
            "the records of this disk. Append at the writer what is to stay. Then stop the manager, move the "
            "partition's directory out of the log directory, and start again: the log begins at the bucket's end. All "
            "relations and what each allows: [diverged logs](../explanation/diverged-logs.md).",
        ),
    ),
    Alert(
        name="TieredBucketLost",
        expr="tiered_remote_lost > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="{{ $value }} partitions have records in a bucket that does not hold them: it is lost or wrong",
        means="This disk has dropped records because the bucket had them, and the bucket lacks them now. It was "
        "replaced, emptied, or restored from an old backup, or `url` names another bucket. The records that are "
        "still on this disk are kept. The partition takes no records, and nothing is written to the bucket.",
        look=("tiered status", "tiered doctor --problems"),
        mend=(
            "Compare `url` in `[remote]` of `tiered.toml` with the bucket that was used before, with its prefix and "
            "its region. A wrong url: correct it and restart the manager.",
            "Was the bucket or its mount replaced? Bring the former one back: the mount, object versions, a replica, a "
            "backup. Restart the manager; it goes on by itself once the bucket holds the records.",
            "An older backup came back? Its newest manifest ends before the first record of this disk. Records between "
            "the two are lost unless another copy exists; the message names the offsets.",
            "Is the bucket gone for good? `tiered consume TOPIC/PARTITION --local -o jsonl` prints what this disk "
            "holds. Create the topic anew in another directory, and append these records there. Keep this directory "
            "until then.",
        ),
    ),
    Alert(
        name="TieredDiskFull",
        expr="tiered_log_dir_free_bytes / tiered_log_dir_total_bytes < {free_share} "
        "or predict_linear(tiered_log_dir_free_bytes[6h], 4 * 3600) < 0",
        lasts="10m",
        severity=Severity.PAGE,
        summary="{{ $labels.directory }} is nearly full, or will be within four hours",
        means="A full disk refuses appends. What is there stays whole, and uploads free it again if they go on.",
        look=("tiered log-dirs", "tiered plan --summary", "tiered status --section local,lag"),
        mend=(
            "Is it lag? See [copy lag grows](copy-lag-grows.md): nothing leaves the disk before it is in the bucket.",
            "Lower `local.retention.ms` or `local.retention.bytes` of the largest topics in `tiered.toml`; a "
            "manager at work reads it again by itself, effective with the next round.",
            "Move partitions to another directory: stop the manager, `tiered log-dirs move`, start it.",
            "Never delete segment files by hand.",
        ),
    ),
    Alert(
        name="TieredDeleteLag",
        expr="max by (topic) (tiered_remote_delete_overdue_seconds) > 86400",
        lasts="1h",
        severity=Severity.TICKET,
        summary="Objects of {{ $labels.topic }} should have been deleted a day ago",
        means="They are out of the index, nobody reads them, and they cost money.",
        look=("tiered doctor --problems", "tiered plan"),
        mend=(
            "Does a reader hold on to them? `tiered doctor` says how many do, and names the pins that last for another "
            "week, with the object to delete if nobody reads by it.",
            "May this user delete (`s3:DeleteObject`)? The doctor tries it. Is there an object lock?",
            "Does the store hang? `tiered_expirer_oldest_turn_seconds` tells. Are there very many partitions, and "
            "`tiered_expirer_oldest_wait_seconds` grows? Raise `remote.log.manager.expiration.thread.pool.size`.",
            "Is a manager at work? See [no rounds](no-rounds.md). What nobody names any more is `tiered gc`'s.",
        ),
    ),
    Alert(
        name="TieredNoRounds",
        # No time of day: the machine's clock may jump, be held, or differ from Prometheus'.
        expr="tiered_last_round_age_seconds > 1800 or absent(tiered_last_round_age_seconds)",
        lasts="5m",
        severity=Severity.PAGE,
        summary="No round of background work has ended for half an hour, or no manager tells its metrics at all",
        means="Nothing is uploaded, dropped, cleaned or deleted. A round that uploads very much may take long "
        "by itself. Where one of several managers is gone, it is Prometheus' own `up` that tells.",
        look=("tiered status", "journalctl -u tiered"),
        mend=(
            "Has it ended? Its last line says why, and systemd does not start it again where that would not help: "
            "exit 5 is [another writer](halted.md), 4 [damage](corruption.md), 2 a setting.",
            "Does it upload? `tiered_objstore_operations_total` rises: wait, or raise the rate.",
            "Does it hang? systemd's watchdog restarts it where `WatchdogSec` is set (`tiered generate systemd`).",
            "Restarting is always safe. After exit 5 it does not take a partition back whose log holds records that "
            "the bucket lacks: [another writer](halted.md).",
        ),
    ),
    Alert(
        name="TieredLogDirOffline",
        expr="tiered_log_dir_offline > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="The log directory {{ $labels.directory }} has failed",
        means="Its disk gave an error. Its partitions are refused, the other directories go on. It stays so "
        "until the next start, even where the disk answers again.",
        look=("tiered status", "tiered log-dirs"),
        mend=(
            "`tiered status` names the error that the manager met, `tiered log-dirs` whether the disk answers now.",
            "Read the kernel's log for the disk's errors.",
            "A loose cable, a lost mount: mend it and restart; the logs are recovered.",
            "A dead disk: put an empty one in its place and make the directory by hand; partitions begin at the "
            "bucket's end. "
            "What only the disk had is lost.",
        ),
    ),
    Alert(
        name="TieredCleanerStuck",
        expr="tiered_cleaner_uncleanable_partitions > 0",
        lasts="30m",
        severity=Severity.TICKET,
        summary="{{ $value }} compacted logs cannot be cleaned",
        means="They grow, and what is not cleaned is not uploaded either.",
        look=("tiered compaction status", "tiered compaction advise"),
        mend=(
            "`tiered compaction status` says why. Damaged batches: [corruption](corruption.md). No room: "
            "[disk full](disk-full.md).",
            "A log left alone is tried again by itself after `log.cleaner.uncleanable.retry.ms` (10 minutes); with the "
            "manager stopped, `tiered compact TOPIC` tries at once.",
        ),
    ),
    Alert(
        name="TieredClockJumped",
        expr="abs(tiered_clock_jump_seconds) > 0",
        lasts="0m",
        severity=Severity.PAGE,
        summary="The machine's clock has jumped by {{ $value | humanizeDuration }}",
        means="Rounds go by the time before the jump, so nothing expires by a wrong clock, for as long as "
        "`clock.jump.hold.ms` says; then the new time is believed. The store is asked: when it says the same time as "
        "the machine, that is believed at once, and never while it says another. Records that come in meanwhile may "
        "bear wrong times, and S3 refuses requests of a machine whose clock is far off.",
        look=("tiered doctor", "timedatectl"),
        mend=(
            "Is the new time wrong? Set the clock, and look at the time server. Rounds go by it again at once.",
            "Is the new time right (the machine came up with a wrong one before), and is there no store to ask? "
            "Restart the manager with `-X clock.jump.hold.ms=0`, and it is believed; later without.",
            "Does the store's clock say another time than one that is right? Set that one.",
            "Did records come in with times far ahead? They stay until then: their segments expire by their newest "
            "record.",
        ),
    ),
    Alert(
        name="TieredCopiersBusy",
        expr="tiered_copier_oldest_wait_seconds > 900",
        lasts="15m",
        severity=Severity.TICKET,
        summary="A partition has waited {{ $value | humanizeDuration }} for its turn at the store",
        means="All threads that wait for the store are busy. Uploads come late, and expiry and deletion with them. "
        "Nothing is lost; the disk fills.",
        look=("tiered status --section lag", "tiered plan --summary"),
        mend=(
            "Does the store answer slowly or not at all? `tiered_copier_oldest_turn_seconds` and "
            "`tiered_objstore_duration_seconds` tell; see [store fails](store-fails.md).",
            "Many partitions, and the store is quick? Raise `remote.log.manager.copier.thread.pool.size` and restart.",
            "Is it the rate? Raise `remote.log.manager.copy.max.bytes.per.second`.",
        ),
    ),
    Alert(
        name="TieredRoundsFail",
        expr="increase(tiered_round_failures_total[30m]) > 3",
        lasts="5m",
        severity=Severity.PAGE,
        summary="Rounds of background work break off",
        means="The disk or the store refuses what every round needs: a checkpoint cannot be written, a head not "
        "be read.",
        look=("tiered status", "tiered doctor --problems", "journalctl -u tiered"),
        mend=(
            "`tiered status` names the error and since when. Where the disk takes not even that report, it says "
            "how old the report of the process at work is, and the error is in that one's log and at `/health`.",
            "No room: [disk full](disk-full.md). A disk that fails: [log dir offline](log-dir-offline.md). The "
            "store: "
            "[store fails](store-fails.md).",
        ),
    ),
)
