"""The background work of a manager.

`maintenance` plans, applies and writes checkpoints. `apply` carries out decisions, `upload_and_commit` copies segments.
`remote_tasks` runs the work that waits for the store.
"""
