# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The hot loops, compiled: the same functions and results as `local.kernels.pure_kernels`.

`pure_kernels` documents each function. All loops over bytes run without the GIL. The bytes are untrusted:

- No byte is read before its position was checked against the end of its record, section or buffer.
- A number is read from the bytes once, into a local; the local is both checked and used. A buffer changed by another
  thread can therefore make a result wrong, but cannot corrupt memory.

This module uses the full Python API: the encoder reads lists of tuples with its macros (the limited API is a third
slower).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact

from functools import lru_cache

import numpy as np

from local.kernels import pure_kernels
from local.format.columns import COLUMN_DTYPES, TORN, BatchTable, Columns, empty_columns, empty_table_arrays
from local.errors import InvalidRequest
from local.format.record import Record

cdef extern from "crc32c_hardware.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c_update(uint32_t seed, const uint8_t *at, size_t length)
    uint32_t crc32c_by_tables(uint32_t seed, const uint8_t *at, size_t length)
    int crc32c_in_hardware

cdef extern from * nogil:
    """
    #if defined(__GNUC__)
    /* The empty asm statement is required: gcc treats a function that only prefetches as one without effect, and
     * removes its calls. */
    #define TIERED_PREFETCH(at) do { __builtin_prefetch((const void *)(at)); __asm__ volatile(""); } while (0)
    #define TIERED_BITS(number) (64 - __builtin_clzll((number) | 1))
    #define TIERED_SET_BITS(number) __builtin_popcountll(number)
    #else
    #define TIERED_PREFETCH(at) ((void)0)
    static int TIERED_BITS(uint64_t number) { int bits = 1; while (number >>= 1) bits++; return bits; }
    static int TIERED_SET_BITS(uint64_t number) { int bits = 0; for (; number; number &= number - 1) bits++; return bits; }
    #endif
    """
    void TIERED_PREFETCH(const void *at)
    int TIERED_BITS(uint64_t number)
    int TIERED_SET_BITS(uint64_t number)

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **object, Py_ssize_t size) except -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

crc32c_prepare()

cdef enum:
    HEADER_BYTES = 61
    LENGTH_OVERHEAD = 12
    LENGTH_MIN = 49
    CRC_START = 21
    MAGIC_END = 17
    RECORD_BYTES_MIN = 7
    RECORD_OVERHEAD_MAX = 36  # varints of 5, 10, 5, 5, 5 and 5 bytes and an attribute byte
    REBUILT_GROWTH_MAX = 12  # maximum growth of a re-based record: time delta 1 to 10 bytes, and its length field
    CODEC_BITS = 0x07
    ZSTD = 4
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    DROP = 0
    VERBATIM = 1
    REBUILD = 2
    REBASE = 4
    PREFETCH_BYTES = 8192
    PREFETCH_RECORD_BYTES = 300  # from this mean record size on, every record length is a cache miss

cdef int64_t INT_MAX = 2147483647
cdef int64_t BASE_OFFSET_MAX = 9223372036854775807 - 1 - 2147483647

# Results of scan_batches, by code. The first two are not corruption.
cdef enum:
    SCAN_END = 0
    SCAN_TORN = 1
    SCAN_MAGIC = 2
    SCAN_FULL = -1
PROBLEMS = (
    None, TORN, "magic", "length below 49", "length above 2^31-13", "crc differs", "offset outside 0..2^63",
    "last offset delta below 0", "offset goes back", "record count outside its offsets", "no such codec",
    "record count above its bytes",
)

# Errors of decode_batches and rebuild_batches, by code.
cdef enum:
    SOUND = 0
    WRONG_CRC = 1
    OUTSIDE = 2
    WRONG_COUNT = 3
    WRONG_RECORD = 4
    WRONG_ORDER = 5
    LEFT_OVER = 6
    TOO_LARGE = 7
    FEW_FLAGS = 8
    NO_ROOM = 9
    LEFT_ALONE = 10
REASONS = (
    "", "crc differs", "it extends beyond the data", "record count above its bytes", "a record exceeds its bounds",
    "offsets do not ascend within the batch", "bytes left over",
)


def crc32c_of(data, uint32_t seed=0, *, bint by_tables=False):
    """The checksum as the kernels compute it; `by_tables` computes it without the CRC instruction."""
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef size_t length = view.shape[0]
    cdef const uint8_t *at = &view[0] if length else NULL
    with nogil:
        seed = crc32c_by_tables(seed, at, length) if by_tables else crc32c_update(seed, at, length)
    return seed


def crc32c_of_each(data, lengths):
    """The checksums of adjacent pieces of `data` from its start.

    Raises InvalidRequest if `lengths` exceed `data`.
    """
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef const int64_t[::1] sizes = np.array(lengths, np.int64)
    cdef Py_ssize_t count = sizes.shape[0], left = view.shape[0], i
    for i in range(count):
        if not 0 <= sizes[i] <= left:
            raise InvalidRequest("cannot compute checksums, a piece is outside the data", bytes=len(data), pieces=count)
        left -= sizes[i]
    sums = np.empty(count, np.uint32)
    cdef uint32_t[::1] out = sums
    cdef const uint8_t *at = &view[0] if view.shape[0] else NULL
    with nogil:
        for i in range(count):
            out[i] = crc32c_update(0, at, sizes[i])
            at += sizes[i]
    return sums.tolist()


def has_crc_instruction():
    """Whether the CRC-32C instruction of this processor is used."""
    return bool(crc32c_in_hardware)

include "_kernels_numbers.pxi"
include "_kernels_scan.pxi"
include "_kernels_decode.pxi"
include "_kernels_gather.pxi"
include "_kernels_arrow.pxi"
include "_kernels_codecs.pxi"
include "_kernels_encode.pxi"
include "_kernels_columns.pxi"
include "_kernels_rebuild.pxi"
include "_kernels_keymap.pxi"
include "_kernels_newest.pxi"
