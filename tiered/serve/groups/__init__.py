"""Consumer groups by Kafka's classic protocol, and their committed offsets. Start with `coordinator`.

`group` is the state machine of one group, `committed` its offsets, both without I/O. `coordinator` has all groups of a
node. `offsets_records` are the bytes of ``__consumer_offsets``, `offsets_log` its storage, `offsets_writer` its writes.
`coordinator_records` decodes the records of all versions for display.
"""
