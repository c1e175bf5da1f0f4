"""Metrics and alerts.

`metric_table` and `alert_table` list them, `metrics` fills them from a running manager, `exposition` prints them for
Prometheus, `monitoring_files` generates rules and dashboards.
"""
