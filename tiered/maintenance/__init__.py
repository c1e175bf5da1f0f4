"""The background work of a manager.

`maintenance` runs a round: plan, apply, checkpoints. `apply` carries out decisions, `upload_and_commit` copies
segments, `remote_tasks` and `task_pool` run what waits for the store.
"""
