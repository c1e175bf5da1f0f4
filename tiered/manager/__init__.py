"""`LogManager`: every topic of one directory, both tiers, one process.

`manager` is the public class; it composes components of the other folders. `remote_acks` waits until the bucket holds
the appended records, and remembers such appends.
"""
