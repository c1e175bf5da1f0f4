"""Detection and repair of damage.

`lint` checks settings, `doctor` a node, `scrub` a bucket; `repair` restores what a scrub found from good copies. Each
result is a finding with a next step.
"""
