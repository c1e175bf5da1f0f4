"""Write a DataFrame to a topic.

`sink` is the data source for writes, `sink_options` has its options, `routing` chooses partitions.
"""
