"""The pages: HTML and JSON from what the library says.

`site` maps an address to a page; each page has a module; `parts` has what all pages share; `manager_cache` and
`data_loader` bring the data.
"""
