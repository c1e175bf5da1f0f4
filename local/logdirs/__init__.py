"""The log directories of one node.

`log_dir` is one directory with its lock and checkpoints. `log_dirs` is the set of directories, with placement and
offline detection. `log_moves` moves a partition between two directories.
"""
