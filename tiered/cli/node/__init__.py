"""Commands for a node: init, run, status, plan, apply, doctor, log-dirs, web, verify, demo, bench."""
