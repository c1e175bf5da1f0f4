"""Inspection of files and objects: dumps, the usage of log directories, the segments of a bucket."""
