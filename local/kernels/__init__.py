"""The hot loops: compiled, and in plain Python with the same results.

`dispatch` uses the compiled module if it was built, `pure_kernels` otherwise. Callers import from this package.
"""

from local.format.compression import INFLATED_BYTES_MAX
from local.kernels.dispatch import (
    REBUILT_PART_BYTES,
    STEP_BYTES,
    KeyMap,
    count_bits,
    cut_columns,
    decode_columns,
    decode_in_steps,
    encode_columns,
    encode_plain_batch,
    encode_records,
    filter_batches,
    gather,
    hash_keys,
    implementation,
    kept_bytes,
    rebuilt_batches,
    scan_batches,
)

__all__ = [
    "INFLATED_BYTES_MAX",
    "REBUILT_PART_BYTES",
    "STEP_BYTES",
    "KeyMap",
    "count_bits",
    "cut_columns",
    "decode_columns",
    "decode_in_steps",
    "encode_columns",
    "encode_plain_batch",
    "encode_records",
    "filter_batches",
    "gather",
    "hash_keys",
    "implementation",
    "kept_bytes",
    "rebuilt_batches",
    "scan_batches",
]
