"""Everything that ends in the bucket.

Pending deletes after their grace period, orphans, pages, old manifests, deleted partitions; and what protects objects
from deletion: pins of readers and references of forks.
"""
