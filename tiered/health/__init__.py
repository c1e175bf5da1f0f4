"""Finding and repairing damage.

`lint` checks settings, `doctor` a node, `scrub` a bucket; `repair` mends what a scrub found from good copies. Each
result is a finding with a next step.
"""
