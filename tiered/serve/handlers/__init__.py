"""Answers to requests, one module per group of APIs. A handler knows no socket, frame or version of a message."""
