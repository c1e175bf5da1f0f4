"""Metrics and alerts.

`metrics` lists the metrics, fills them from a running manager and prints them for Prometheus, `monitoring_files`
generates alert rules, the dashboard, the systemd unit, and the policies and rules of a bucket.
"""
