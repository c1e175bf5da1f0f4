"""Read-only HTML and JSON pages over a manager."""
