"""`tiered bench`: how fast this machine, disk and bucket are.

`benchmark` runs the parts and prints ratios, `benchmark_local` measures the disk, `benchmark_remote` the bucket.
"""
