"""Serving the pages and metrics over HTTP.

`server` serves the pages, `metrics_server` the metrics and health, `gate` checks names and tokens, `serving` runs
uvicorn in a thread.
"""
