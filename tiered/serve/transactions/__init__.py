"""The transaction coordinator of one node: Kafka's transactions, with their state in ``__transaction_state``.

`transaction` decides (pure), `transaction_records` is the format of the topic, `coordinator` performs the effects in
order and recovers after a crash, `transaction_log` is its storage over the node's records. Start with `coordinator`.
"""
