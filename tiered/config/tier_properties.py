"""The properties of the remote tier: one part of the table of properties."""

from __future__ import annotations

from tiered.config.property_table import Kind, Property, Source

DELETE_ON_DISABLE = "remote.log.delete.on.disable"
IMMUTABLE = "remote.immutable"
TIER_TABLE = (
    Property(
        name=DELETE_ON_DISABLE,
        kind=Kind.BOOL,
        default="false",
        doc="Allows remote.storage.enable to change from true to false, by altering the topic: the objects in "
        "the bucket are deleted and the log begins at the first local record (KIP-950).",
    ),
    Property(
        name="remote.log.manager.copier.thread.pool.size",
        kind=Kind.INT,
        default="10",
        minimum=1,
        maximum=1000,
        is_per_topic=False,
        doc="Partitions that a daemon copies at the same time.",
    ),
    Property(
        name="remote.log.manager.expiration.thread.pool.size",
        kind=Kind.INT,
        default="10",
        minimum=1,
        maximum=1000,
        is_per_topic=False,
        doc="Number of partitions that a daemon acquires, and in which it expires and deletes remote segments, "
        "at the same time. These threads are separate from the copiers, so uploads that hang delay no "
        "deletion.",
    ),
    Property(
        name=IMMUTABLE,
        kind=Kind.BOOL,
        default="false",
        is_per_topic=False,
        source=Source.TIERED,
        doc="No object in the bucket is ever overwritten or deleted (object lock): expired segments leave the "
        "manifest and are left to the bucket's lifecycle; 'tiered gc' lists them.",
    ),
)
