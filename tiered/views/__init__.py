"""Build compacted views.

`view_survivors` is pass one (which records stay), `view_parts` pass two (writing the parts). `view_building` runs both
and commits. `tiered.read.view_reader` reads a view.
"""
