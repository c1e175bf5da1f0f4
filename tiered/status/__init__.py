"""Status of a node and its tiers.

`status_report` gathers figures and problems, and flattens them for output, `tier_history` records figures
over time, `sync_status` compares both tiers, `compaction_status` describes the compacted logs.
"""
