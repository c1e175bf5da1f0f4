"""Small files and facts of one node: topics, paused uploads, lock holder, writer ids, report, problems."""
