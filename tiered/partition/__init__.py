"""One partition held by a manager: both tiers and their relation.

`partition` is the object, `tier_state` its states, `partition_opening` opens it, `partition_table` has all of a
manager. `reconciliation` compares the local log with the manifest, `segment_inspection` reads the facts for a copy.
"""
