"""`tiered bench`: the speed of this machine, disk and bucket.

`benchmark` runs the parts and prints ratios, `benchmark_local` measures the disk, `benchmark_remote` the bucket.
"""
