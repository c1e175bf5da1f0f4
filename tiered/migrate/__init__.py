"""Move data into and out of the system.

`adopt` tiers a live broker's directory. `import_bucket` imports external buckets. `restore_plan` and `restore_running`
restore topics to a disk. `fork` makes a topic that names another topic's objects.
"""
