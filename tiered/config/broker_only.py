"""Kafka broker settings without effect here: the reason, and the replacement.

The names are those of Kafka 4.1 (`server.properties`): one by one for settings of logs, by prefix for families that
concern brokers alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOnly:
    """The reason why a setting has no effect, and its replacement (empty if none is needed)."""

    why: str
    instead: str = ""

    @property
    def words(self) -> str:
        return f"{self.why}; use {self.instead}" if self.instead else self.why


_DIRECTORIES = BrokerOnly(why="log directories are not settings of topics", instead="dir or dirs in [local]")
_ALWAYS_CLEANS = BrokerOnly(why="the cleaner always runs", instead="cleanup.policy, by topic")
_ROUNDS = BrokerOnly(why="each maintenance round cleans", instead="remote.log.manager.task.interval.ms")
_CHECKPOINTS = BrokerOnly(why="checkpoints are written when their contents change")
_FORMAT = BrokerOnly(why="batches are written in format 2, and older formats are read")
_REMOTE_POOLS = BrokerOnly(why="transfers have a fixed number of threads per kind")
_PLUGIN = BrokerOnly(why="the remote tier is built in", instead="url and options in [remote]")
_METADATA = BrokerOnly(why="the manifests in the bucket are the remote log metadata; there is no metadata topic")

_NAMES = {
    "log.dir": _DIRECTORIES,
    "log.dirs": _DIRECTORIES,
    "log.dir.failure.timeout.ms": BrokerOnly(why="a log directory that fails is offline at once"),
    "log.initial.task.delay.ms": BrokerOnly(why="the first maintenance round starts immediately"),
    "log.preallocate": BrokerOnly(why="segments are not preallocated"),
    "log.cleaner.enable": _ALWAYS_CLEANS,
    "log.cleaner.backoff.ms": _ROUNDS,
    "log.cleaner.io.buffer.size": BrokerOnly(why="segments are memory-mapped, so the cleaner has no I/O buffer"),
    "log.cleaner.hash.algorithm": BrokerOnly(why="the cleaner compares keys, or their keyed digests"),
    "log.flush.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.flush.start.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.message.format.version": _FORMAT,
    "log.message.downconversion.enable": _FORMAT,
    "log.message.timestamp.difference.max.ms": BrokerOnly(
        why="Kafka replaced it", instead="message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
    "num.partitions": BrokerOnly(why="each topic states its number of partitions", instead="tiered topic create -p"),
    "auto.create.topics.enable": BrokerOnly(why="topics are created explicitly", instead="tiered topic create"),
    "delete.topic.enable": BrokerOnly(why="topics can always be deleted"),
    "num.io.threads": BrokerOnly(why="appends and reads run in the thread of the caller"),
    "background.threads": BrokerOnly(why="maintenance runs in one thread, transfers have their own threads"),
    "remote.log.metadata.custom.metadata.max.bytes": _METADATA,
    "remote.log.index.file.cache.total.size.bytes": BrokerOnly(
        why="indexes are a part of the read cache", instead="remote.fetch.cache.bytes"
    ),
    "remote.fetch.max.wait.ms": BrokerOnly(why="a read of the remote tier waits for the deadline of the store"),
    "remote.list.offsets.request.timeout.ms": BrokerOnly(why="a lookup waits for the deadline of the store"),
    "fetch.max.bytes": BrokerOnly(why="readers choose how much they fetch"),
    # Not by prefix: misspelt names of this project's settings begin with these.
    **{f"remote.log.{name}": _REMOTE_POOLS for name in (
        "manager.thread.pool.size", "manager.follower.thread.pool.size", "manager.task.retry.backoff.ms",
        "manager.task.retry.backoff.max.ms", "manager.task.retry.jitter", "manager.copy.quota.window.num",
        "manager.copy.quota.window.size.seconds", "manager.fetch.quota.window.num",
        "manager.fetch.quota.window.size.seconds", "reader.threads", "reader.max.pending.tasks",
    )},
}  # fmt: skip
_LONE = BrokerOnly(why="there is no replication, and one process writes a directory")
_SERVER = BrokerOnly(why="it concerns the network requests of the broker")
_GROUPS = BrokerOnly(why="it concerns the group and transaction coordinators of the broker")
_SECURITY = BrokerOnly(why="it concerns the security of the broker's listeners")
_CLUSTER = BrokerOnly(why="there is no cluster and no controller")
_METRICS = BrokerOnly(why="metrics are exported for Prometheus", instead="tiered run --metrics")
# By prefix; the first match decides.
_FAMILIES = (
    ("remote.log.storage.manager.", _PLUGIN),
    ("rsm.config.", _PLUGIN),
    ("remote.log.metadata.", _METADATA),
    ("rlmm.config.", _METADATA),
    ("metric.", _METRICS),
    ("metrics.", _METRICS),
    ("kafka.metrics.", _METRICS),
    ("auto.include.jmx.reporter", _METRICS),
    *((name, _CLUSTER) for name in (
        "broker.", "node.id", "process.roles", "controller.", "controlled.shutdown.", "metadata.", "zookeeper.",
        "initial.broker.", "early.start.", "server.max.", "unstable.", "reserved.broker.",
    )),
    *((name, _LONE) for name in (
        "replica.", "num.replica.", "default.replication.", "min.insync.", "unclean.", "auto.leader.", "leader.",
        "follower.", "inter.broker.", "alter.log.dirs.", "replication.",
    )),
    *((name, _GROUPS) for name in (
        "group.", "offsets.", "offset.metadata.", "transaction.", "transactional.", "share.", "producer.purgatory.",
        "fetch.purgatory.", "delete.records.purgatory.", "streams.",
    )),
    *((name, _SECURITY) for name in (
        "ssl.", "sasl.", "security.", "authorizer.", "principal.", "delegation.", "password.", "super.users",
        "allow.everyone.", "connections.max.reauth.",
    )),
    *((name, _SERVER) for name in (
        "listener", "advertised.", "host.name", "port", "socket.", "queued.", "request.", "connection",
        "max.connection", "num.network.", "quota.", "client.", "max.request.", "max.incremental.", "telemetry.",
        "alter.config.", "create.topic.",
    )),
)  # fmt: skip


def broker_only(name: str) -> BrokerOnly | None:
    """The reason why a broker setting has no effect here; None for a name not known as one."""
    if name in _NAMES:
        return _NAMES[name]
    return next((of for begin, of in _FAMILIES if name.startswith(begin)), None)


def names_of_logs() -> frozenset[str]:
    """The names without effect of the family ``log.``, in which any other unknown name is a mistake."""
    return frozenset(name for name in _NAMES if name.startswith("log."))
