"""JSON schemas of what the commands print.

`schemas` lists them by command; the other modules hold the types by area.
"""
