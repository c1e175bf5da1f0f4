"""The page of a manager at work: read-only HTML and JSON over what the library tells."""
