"""The log cleaner: keep the newest record of every key.

`offset_map` is pass one, `record_retention` decides in pass two, `cleaner` runs both passes and swaps the result in.
`cleaner.clean` runs the cleaner on a log that is in use.
"""
