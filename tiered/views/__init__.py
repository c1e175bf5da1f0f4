"""Building compacted views.

`view_survivors` is pass one (which records stay), `view_parts` pass two (writing the parts), `view_building` runs
both and commits. Reading a view is in `tiered.read.view_reader`.
"""
