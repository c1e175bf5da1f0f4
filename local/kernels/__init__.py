"""The hot loops: compiled, and in plain Python with the same results.

`dispatch` uses the compiled module if it was built, `pure_kernels` otherwise. Callers import from this package.
"""

from local.format.compression import INFLATED_BYTES_MAX as INFLATED_BYTES_MAX
from local.kernels.dispatch import REBUILT_PART_BYTES as REBUILT_PART_BYTES
from local.kernels.dispatch import STEP_BYTES as STEP_BYTES
from local.kernels.dispatch import KeyMap as KeyMap
from local.kernels.dispatch import Sections as Sections
from local.kernels.dispatch import compress_section as compress_section
from local.kernels.dispatch import count_bits as count_bits
from local.kernels.dispatch import cut_columns as cut_columns
from local.kernels.dispatch import decode_columns as decode_columns
from local.kernels.dispatch import decode_in_steps as decode_in_steps
from local.kernels.dispatch import encode_columns as encode_columns
from local.kernels.dispatch import encode_plain_batch as encode_plain_batch
from local.kernels.dispatch import filter_batches as filter_batches
from local.kernels.dispatch import gather as gather
from local.kernels.dispatch import hash_keys as hash_keys
from local.kernels.dispatch import implementation as implementation
from local.kernels.dispatch import keep_freed_memory as keep_freed_memory
from local.kernels.dispatch import kept_bytes as kept_bytes
from local.kernels.dispatch import rebuilt_batches as rebuilt_batches
from local.kernels.dispatch import scan_batches as scan_batches
from local.kernels.dispatch import sections_in_steps as sections_in_steps
