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
        doc=(
            "Allows remote.storage.enable to change from true to false by altering the topic: the "
            "objects in the bucket are deleted and the log starts at the first local record "
            "(KIP-950)."
        ),
    ),
    Property(
        name="remote.log.manager.copier.thread.pool.size",
        kind=Kind.INT,
        default="10",
        minimum=1,
        maximum=1000,
        is_per_topic=False,
        doc="Number of partitions that a manager copies at the same time.",
    ),
    Property(
        name="remote.log.manager.expiration.thread.pool.size",
        kind=Kind.INT,
        default="10",
        minimum=1,
        maximum=1000,
        is_per_topic=False,
        doc=(
            "Number of partitions that a manager acquires, expires and deletes in the remote tier at "
            "the same time. These threads are separate from the copy threads, so hanging uploads "
            "delay no deletion."
        ),
    ),
    Property(
        name=IMMUTABLE,
        kind=Kind.BOOL,
        default="false",
        is_per_topic=False,
        source=Source.TIERED,
        doc=(
            "No object in the bucket is ever overwritten or deleted (object lock): expired segments "
            "leave the manifest and the lifecycle of the bucket deletes them; 'tiered gc' lists them."
        ),
    ),
)
