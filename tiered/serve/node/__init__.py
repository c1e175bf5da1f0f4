"""A running `LogManager` behind the Kafka endpoint. Start with `node_source`; `endpoint` puts the parts together."""
