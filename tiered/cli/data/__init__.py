"""Commands for records: append, consume, dump, get-offsets, delete-records, transactions."""
