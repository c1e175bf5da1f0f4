"""The log cleaner: keep the newest record of every key. `cleaner.clean` cleans a log that is in use."""
