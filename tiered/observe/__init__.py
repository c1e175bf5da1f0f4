"""Metrics and alerts.

`metric_table` lists the metrics and prints them for Prometheus, `metrics` fills them from a running manager,
`monitoring_files` generates alert rules, the dashboard and the systemd unit.
"""
