"""One partition held by a manager: both tiers and their relation.

`partition` is the object, `partition_opening` opens it, `reconciliation` compares the local log with the manifest.
`segment_inspection` reads the facts of a segment that a copy needs.
"""
