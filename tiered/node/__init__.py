"""Small files and facts of one node.

The topic registry, paused uploads, the lock holder, writer ids, the report of a running manager, and problems with
their next steps.
"""
