"""Writing a DataFrame to a topic.

`sink` is the data source for writes, `sink_options` its options, `routing` chooses partitions.
"""
