"""Build compacted views.

`view_survivors` is pass one (which records stay). `view_building` runs it, writes the parts (pass two) and commits.
`tiered.read.view_reader` reads a view.
"""
