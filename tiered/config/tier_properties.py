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
        doc="Lets remote.storage.enable go from true to false, by altering the topic: what is in the bucket is deleted "
        "and the log begins where the disk does (KIP-950).",
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
        doc="Partitions that a daemon takes up, and whose remote segments it expires and deletes, at the same time, "
        "beside those that it copies: uploads that hang hold up no deletion.",
    ),
    Property(
        name=IMMUTABLE,
        kind=Kind.BOOL,
        default="false",
        is_per_topic=False,
        source=Source.TIERED,
        doc="Nothing in the bucket is ever overwritten or deleted (object lock): what retention lets go of leaves the "
        "index and is left to the bucket's lifecycle; 'tiered gc' lists it.",
    ),
)
