"""What topics cost, and what would make them cheaper.

`topic_cost` bills a deployment, `cost_simulation` asks other settings of its own history, `cost_advising` proposes
changes, `advice_applying` carries them out.
"""
