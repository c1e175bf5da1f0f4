"""The pages: HTML and JSON about the state of a manager. `site` maps an address to a page."""
