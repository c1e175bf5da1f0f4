"""The pages: HTML and JSON about the state of a manager.

`site` maps an address to a page; each page has a module; `parts` has common parts; `manager_cache` and `data_loader`
load the data."""
