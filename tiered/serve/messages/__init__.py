"""The messages of the served APIs, one class for all versions. Values are Kafka's own, -1 included.

A field has the name that `kio` gives it; a field with a duration has the suffix ``_ms``. A version of an API that lacks
a field leaves its default in a request and omits it from a response (`tiered.serve.codec`). The `APIS` of each module
are the versions that it serves.
"""
