"""Moving data in and out.

`adopt` tiers a live broker's directory, `import_bucket` brings in external buckets, `restore_plan` and
`restore_running` put topics back on a disk, `fork` makes a topic of another's objects.
"""
