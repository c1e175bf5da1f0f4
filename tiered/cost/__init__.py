"""Bills of topics, cost simulation, and advice that lowers costs.

`topic_cost` makes the bill of a deployment, `cost_simulation` prices other settings on the measured history,
`cost_advising` proposes changes, `advice_applying` carries them out.
"""
