"""The Kafka endpoint: Kafka clients read topics over its protocol. Start with `server` and `record_source`.

`connection` moves frames, `protocol` turns them into `messages`, `handlers` answer those from a `RecordSource`.
"""
