"""Metrics of a running manager; alerts, dashboards and policies made from them."""
