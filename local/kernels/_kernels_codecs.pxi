# Compressed batches by the machine's own codec libraries, loaded when this module is imported: no header of a library
# is needed to build it, and none of the libraries to run it. Included by `_kernels.pyx`.
#
# Only plain frames are read here: those that Kafka's clients write, undamaged, without dictionary, window beyond 64 MiB,
# second gzip member, gzip header checksum or skippable frame. Everything else is REFUSED, and `dispatch` gives the batch
# to `local.format.compression`, which reads every legal frame and names every fault. A refusal costs time, never a result.
#
# | codec  | library                       | frames that are read                                             |
# |--------|-------------------------------|------------------------------------------------------------------|
# | gzip   | libdeflate 1.4                | one member                                                       |
# | snappy | none: `read_snappy`           | raw, and xerial                                                  |
# | lz4    | liblz4 1.8                    | independent blocks of 64 KiB, no checksum, no content size       |
# | zstd   | libzstd 1.3                   | frames one after another                                         |
#
# The output of a library never exceeds the room that it gets. Sources of the prototypes: libdeflate.h, lz4.h, zstd.h.

from libc.stdlib cimport free, malloc

cdef extern from "dlfcn.h" nogil:
    enum:
        RTLD_NOW
    void *dlopen(const char *name, int flags)
    void *dlsym(void *library, const char *name)

ctypedef void *(*NewContext)() noexcept nogil
ctypedef void *(*NewGzipWriter)(int level) noexcept nogil
ctypedef size_t (*FreeZstd)(void *context) noexcept nogil
ctypedef void (*FreeGzip)(void *context) noexcept nogil
ctypedef size_t (*ZstdRead)(void *context, void *out, size_t room, const void *data, size_t length) noexcept nogil
ctypedef size_t (*ZstdWrite)(
    void *context, void *out, size_t room, const void *data, size_t length, int level
) noexcept nogil
ctypedef int (*Lz4Move)(const void *data, void *out, int length, int room) noexcept nogil
ctypedef int (*GzipRead)(
    void *context, const void *data, size_t length, void *out, size_t room, size_t *read, size_t *written
) noexcept nogil
ctypedef size_t (*GzipWrite)(void *context, const void *data, size_t length, void *out, size_t room) noexcept nogil
ctypedef size_t (*GzipBound)(void *context, size_t length) noexcept nogil

cdef enum:
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    REFUSED = -1
    GZIP_HEADER_CHECKSUM = 2  # libdeflate skips it unchecked
    GZIP_LEVEL = 5  # of libdeflate: its output is as small as zlib's of level 6, Kafka's default
    ZSTD_LEVEL = 3
    ZSTD_BLOCK = 131072
    ZSTD_WINDOW_BITS = 27  # frames from this window on are refused
    LZ4_BLOCK = 65536
    LZ4_FRAME_BYTES = 11  # header and end mark
    XERIAL_BLOCK = 32768
    XERIAL_BYTES = 16
    SNAPPY_PLACES = 16384
    SNAPPY_TAIL = 15  # bytes at the end of a block that are not searched, so that a search reads eight at once
    BOUND_MAX = 67108864
    SCRATCH_BYTES_KEPT = 4194304
    POOLED_MAX = 8

cdef struct Libraries:
    NewContext new_zstd_reader
    NewContext new_zstd_writer
    FreeZstd free_zstd_reader
    FreeZstd free_zstd_writer
    ZstdRead zstd_read
    ZstdWrite zstd_write
    Lz4Move lz4_read
    Lz4Move lz4_write
    NewContext new_gzip_reader
    NewGzipWriter new_gzip_writer
    FreeGzip free_gzip_reader
    FreeGzip free_gzip_writer
    GzipRead gzip_read
    GzipWrite gzip_write
    GzipBound gzip_bound

cdef Libraries libraries
cdef bint has_gzip = False, has_lz4 = False, has_zstd = False, has_snappy = True
cdef list pooled = []


cdef bint symbols(tuple names, tuple wanted, void **out):
    """Fill `out` from the first library that is found; False unless it has all symbols."""
    cdef void *library = NULL
    cdef int index
    for name in names:
        library = dlopen(<bytes>name, RTLD_NOW)
        if library:
            break
    if not library:
        return False
    for index in range(len(wanted)):
        out[index] = dlsym(library, <bytes>wanted[index])
        if not out[index]:
            return False
    return True


def load_codecs(bint wanted=True):
    """The codecs that this module reads and writes itself; none but by tests that compare, unless `wanted`."""
    global has_gzip, has_lz4, has_zstd, has_snappy
    has_zstd = wanted and symbols(
        (b"libzstd.so.1", b"libzstd.1.dylib"),
        (b"ZSTD_createDCtx", b"ZSTD_createCCtx", b"ZSTD_freeDCtx", b"ZSTD_freeCCtx", b"ZSTD_decompressDCtx",
         b"ZSTD_compressCCtx"),
        <void **>&libraries.new_zstd_reader,
    )
    has_lz4 = wanted and symbols(
        (b"liblz4.so.1", b"liblz4.1.dylib"), (b"LZ4_decompress_safe", b"LZ4_compress_default"),
        <void **>&libraries.lz4_read,
    )
    has_gzip = wanted and symbols(
        (b"libdeflate.so.0", b"libdeflate.0.dylib"),
        (b"libdeflate_alloc_decompressor", b"libdeflate_alloc_compressor", b"libdeflate_free_decompressor",
         b"libdeflate_free_compressor", b"libdeflate_gzip_decompress_ex", b"libdeflate_gzip_compress",
         b"libdeflate_gzip_compress_bound"),
        <void **>&libraries.new_gzip_reader,
    )
    has_snappy = wanted
    found = (("gzip", has_gzip), ("snappy", has_snappy), ("lz4", has_lz4), ("zstd", has_zstd))
    return [name for name, is_found in found if is_found]


cdef class Codecs:
    """Contexts and scratch memory for one thread at a time: `taken`, then `given_back`."""
    cdef void *zstd_reader
    cdef void *zstd_writer
    cdef void *gzip_reader
    cdef void *gzip_writer
    cdef uint8_t *scratch
    cdef size_t scratch_bytes
    cdef uint16_t places[SNAPPY_PLACES]

    def __dealloc__(self):
        if self.zstd_reader:
            libraries.free_zstd_reader(self.zstd_reader)
        if self.zstd_writer:
            libraries.free_zstd_writer(self.zstd_writer)
        if self.gzip_reader:
            libraries.free_gzip_reader(self.gzip_reader)
        if self.gzip_writer:
            libraries.free_gzip_writer(self.gzip_writer)
        free(self.scratch)

    cdef uint8_t *room(self, size_t size) noexcept nogil:
        """`size` bytes of scratch memory, NULL without memory; it replaces what an earlier call returned."""
        if size > self.scratch_bytes:
            free(self.scratch)
            self.scratch = <uint8_t *>malloc(size)
            self.scratch_bytes = size if self.scratch else 0
        return self.scratch

    cdef int64_t bound(self, int codec, const uint8_t *data, int64_t length) noexcept nogil:
        """The most bytes that a frame decompresses to, or REFUSED. At least `read` checks the rest."""
        cdef int64_t size
        if codec == ZSTD and has_zstd:
            return zstd_bound(data, length)
        if codec == LZ4 and has_lz4:
            return lz4_bound(data, length)
        if codec == SNAPPY and has_snappy:
            return snappy_bound(data, length)
        if codec == GZIP and has_gzip and length >= 18 and not data[3] & GZIP_HEADER_CHECKSUM:
            size = little32(data + length - 4)
            return size if size <= BOUND_MAX and size <= length * 1032 else REFUSED
        return REFUSED

    cdef int64_t read(
        self, int codec, const uint8_t *data, int64_t length, uint8_t *out, int64_t room
    ) noexcept nogil:
        """The bytes written to `out`, at most `room`; or REFUSED."""
        cdef size_t size = 0, consumed = 0
        if codec == ZSTD:
            if not self.zstd_reader:
                self.zstd_reader = libraries.new_zstd_reader()
                if not self.zstd_reader:
                    return REFUSED
            size = libraries.zstd_read(self.zstd_reader, out, room, data, length)
            return <int64_t>size if size <= <size_t>room else REFUSED  # an error is a number near the largest
        if codec == LZ4:
            return read_lz4(data, length, out, room)
        if codec == SNAPPY:
            return read_snappy(data, length, out, room)
        if not self.gzip_reader:
            self.gzip_reader = libraries.new_gzip_reader()
            if not self.gzip_reader:
                return REFUSED
        if libraries.gzip_read(self.gzip_reader, data, length, out, room, &consumed, &size):
            return REFUSED
        return <int64_t>size if consumed == <size_t>length else REFUSED

    cdef int64_t write_bound(self, int codec, int64_t length) noexcept nogil:
        """The most bytes that `write` takes for `length` bytes."""
        if codec == LZ4:
            return LZ4_FRAME_BYTES + (length // LZ4_BLOCK + 1) * (4 + LZ4_BLOCK // 255 + 16) + length
        if codec == SNAPPY:
            return XERIAL_BYTES + (length // XERIAL_BLOCK + 1) * (4 + 32) + length + length // 6
        if codec == GZIP:
            return length + (length // 4096 + 1) * 8 + 64  # more than libdeflate's own bound, which needs a context
        return length + (length >> 8) + 64 + (ZSTD_BLOCK >> 11)

    cdef int64_t write(
        self, int codec, const uint8_t *data, int64_t length, uint8_t *out, int64_t room
    ) noexcept nogil:
        """The bytes of the frame in `out`, at Kafka's default level; or REFUSED. `room` is at least `write_bound`."""
        cdef size_t size
        if codec == ZSTD and has_zstd:
            if not self.zstd_writer:
                self.zstd_writer = libraries.new_zstd_writer()
                if not self.zstd_writer:
                    return REFUSED
            size = libraries.zstd_write(self.zstd_writer, out, room, data, length, ZSTD_LEVEL)
            return <int64_t>size if size <= <size_t>room else REFUSED
        if codec == LZ4 and has_lz4:
            return write_lz4(data, length, out, room)
        if codec == SNAPPY and has_snappy:
            return write_snappy(data, length, out, &self.places[0])
        if codec == GZIP and has_gzip:
            if not self.gzip_writer:
                self.gzip_writer = libraries.new_gzip_writer(GZIP_LEVEL)
                if not self.gzip_writer:
                    return REFUSED
            size = libraries.gzip_write(self.gzip_writer, data, length, out, room)
            return <int64_t>size if size else REFUSED
        return REFUSED


cdef Codecs taken():
    return pooled.pop() if pooled else Codecs()


cdef void given_back(Codecs codecs):
    if codecs.scratch_bytes > SCRATCH_BYTES_KEPT:
        free(codecs.scratch)
        codecs.scratch, codecs.scratch_bytes = NULL, 0
    if len(pooled) < POOLED_MAX:
        pooled.append(codecs)


def inflate_batches(
    data, table, kinds, Py_ssize_t first_row, arena, int64_t used, int64_t budget, ends, int64_t limit,
    int64_t records_max,
):
    """Decompress rows from `first_row` on into `arena` from byte `used` on: (following row, bytes used).

    Stops after the row that takes `used` past `budget`, and before a row that is refused or has no room. `kinds` are
    those of `pure_kernels`, one per row; `ends` receives the end of each row. Checks no checksum. Raises InvalidRequest.
    """
    cdef const uint8_t[::1] view = data
    cdef const uint8_t *bytes_ = &view[0] if view.shape[0] else NULL
    cdef _Table rows = _Table(table)
    cdef const uint8_t[::1] kinds_ = kinds
    cdef uint8_t[::1] arena_ = arena
    cdef int64_t[::1] ends_ = ends
    cdef int64_t room = arena_.shape[0], size, bound, length = view.shape[0]
    cdef uint8_t *out = &arena_[0] if room else NULL
    cdef Py_ssize_t row = first_row
    cdef const uint8_t *section
    cdef Batch batch
    cdef int codec
    cdef Codecs codecs
    if kinds_.shape[0] != rows.rows or ends_.shape[0] != rows.rows or not 0 <= used <= room or first_row < 0:
        raise InvalidRequest("cannot decompress batches, kinds and batches differ in number", rows=rows.rows)
    codecs = taken()
    with nogil:
        while row < rows.rows and used <= budget:
            batch = rows.row(row)
            if batch.position < 0 or batch.size < HEADER_BYTES or batch.size > length - batch.position:
                break
            section, size = bytes_ + batch.position + HEADER_BYTES, batch.size - HEADER_BYTES
            if kinds_[row] == 0:
                if size > room - used:
                    break
                memcpy(out + used, section, size)
            elif kinds_[row] == 1 and batch.count <= records_max:
                codec = batch.bits & CODEC_BITS
                bound = codecs.bound(codec, section, size)
                if bound < 0 or bound > limit or bound > room - used:
                    break
                size = codecs.read(codec, section, size, out + used, bound)
                if size < 0:
                    break
            else:
                break
            used += size
            ends_[row] = used
            row += 1
    given_back(codecs)
    return row, used


def compress_section(int codec, data):
    """The records as a frame of Kafka's default level; None if this module does not write the codec."""
    cdef const uint8_t[::1] view = data
    cdef int64_t length = view.shape[0], size
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef Codecs codecs = taken()
    cdef int64_t room = codecs.write_bound(codec, length)
    cdef object made = PyBytes_FromStringAndSize(NULL, room)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(made)
    with nogil:
        size = codecs.write(codec, bytes_, length, out, room)
    given_back(codecs)
    return None if size < 0 else made[:size]


cdef inline int64_t little32(const uint8_t *at) noexcept nogil:
    return <int64_t>at[0] | <int64_t>at[1] << 8 | <int64_t>at[2] << 16 | <int64_t>at[3] << 24


cdef inline uint64_t little64(const uint8_t *at) noexcept nogil:
    return <uint64_t>little32(at) | <uint64_t>little32(at + 4) << 32


# -- zstd, source: RFC 8878

cdef int64_t zstd_bound(const uint8_t *data, int64_t length) noexcept nogil:
    cdef int64_t at = 0, total = 0, size, declared, block, largest
    cdef int flags, width, index, header
    cdef uint32_t word
    while at < length:
        if length - at < 9 or little32(data + at) != <int64_t>0xFD2FB528:
            return REFUSED
        flags = data[at + 4]
        if flags & 0x0B:  # a dictionary, or the reserved bit
            return REFUSED
        header, width, largest = 5, flags >> 5 & 1, ZSTD_BLOCK
        if not width:
            if data[at + 5] >> 3 >= ZSTD_WINDOW_BITS - 10:
                return REFUSED
            header = 6
            largest = min(largest, <int64_t>(8 + (data[at + 5] & 7)) << 7 + (data[at + 5] >> 3))
        if flags >> 6:
            width = 1 << (flags >> 6)
        if length - at < header + width + 3:
            return REFUSED
        declared = 256 if width == 2 else 0
        for index in range(min(width, 7)):
            declared += <int64_t>data[at + header + index] << (8 * index)
        if width == 8 and data[at + header + 7]:
            return REFUSED
        at += header + width
        size, word = 0, 0
        while not word & 1:
            if length - at < 3:
                return REFUSED
            word = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16
            block = word >> 3
            if block > largest:
                return REFUSED
            size += largest if word >> 1 & 3 == 2 else block
            at += 3 + (1 if word >> 1 & 3 == 1 else block)
            if at > length:
                return REFUSED
        at += 4 if flags & 4 else 0
        total += min(size, declared) if width else size
        if total > BOUND_MAX or at > length:
            return REFUSED
    return total


# -- lz4, source: the LZ4 frame format 1.6, and kafka `Lz4BlockOutputStream`

cdef bint has_lz4_header(const uint8_t *data) noexcept nogil:
    return (
        little32(data) == 0x184D2204 and data[4] == 0x60 and data[5] == 0x40 and data[6] == 0x82
    )  # version 1, independent blocks of 64 KiB, the checksum of the header


cdef int64_t lz4_bound(const uint8_t *data, int64_t length) noexcept nogil:
    cdef int64_t at = 7, total = 0, block, word
    if length < LZ4_FRAME_BYTES or not has_lz4_header(data):
        return REFUSED
    while True:
        if length - at < 4:
            return REFUSED
        word = little32(data + at)
        at += 4
        if word == 0:
            return total if at == length else REFUSED
        block = word & 0x7FFFFFFF
        if block == 0 or block > length - at or block > LZ4_BLOCK or total > BOUND_MAX:
            return REFUSED
        total += block if word >> 31 else LZ4_BLOCK
        at += block


cdef int64_t read_lz4(const uint8_t *data, int64_t length, uint8_t *out, int64_t room) noexcept nogil:
    """The frame was measured by `lz4_bound`; a frame that changed since then is refused, or read within its bounds."""
    cdef int64_t at = 7, size = 0, block, word
    cdef int found
    while length - at >= 4:
        word = little32(data + at)
        at += 4
        if word == 0:
            return size
        block = word & 0x7FFFFFFF
        if block > length - at:
            return REFUSED
        if word >> 31:
            if block > room - size:
                return REFUSED
            memcpy(out + size, data + at, block)
            size += block
        else:
            found = libraries.lz4_read(data + at, out + size, <int>block, <int>min(room - size, <int64_t>LZ4_BLOCK))
            if found < 0:
                return REFUSED
            size += found
        at += block
    return REFUSED


cdef int64_t write_lz4(const uint8_t *data, int64_t length, uint8_t *out, int64_t room) noexcept nogil:
    cdef int64_t at = 0, block, size = 7
    cdef int packed
    out[0], out[1], out[2], out[3], out[4], out[5], out[6] = 0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82
    while at < length:
        block = min(length - at, <int64_t>LZ4_BLOCK)
        packed = libraries.lz4_write(data + at, out + size + 4, <int>block, <int>min(room - size - 8, <int64_t>INT_MAX))
        if packed <= 0:
            return REFUSED
        if packed < block:
            put_little32(out + size, packed)
            size += 4 + packed
        else:  # stored uncompressed: the top bit of the length is set
            put_little32(out + size, <uint32_t>block | 0x80000000u)
            memcpy(out + size + 4, data + at, block)
            size += 4 + block
        at += block
    put_little32(out + size, 0)
    return size + 4


cdef inline void put_little32(uint8_t *at, uint32_t number) noexcept nogil:
    at[0], at[1], at[2], at[3] = number & 0xFF, number >> 8 & 0xFF, number >> 16 & 0xFF, number >> 24


# -- snappy, source: the snappy format description, and snappy-java `SnappyOutputStream`

cdef bint has_xerial_header(const uint8_t *data, int64_t length) noexcept nogil:
    return (
        length >= 8 and data[0] == 0x82 and data[1] == 83 and data[2] == 78 and data[3] == 65 and data[4] == 80
        and data[5] == 80 and data[6] == 89 and data[7] == 0
    )


cdef int64_t snappy_bound(const uint8_t *data, int64_t length) noexcept nogil:
    cdef int64_t at = XERIAL_BYTES, total = 0, size, block
    cdef int header
    if not has_xerial_header(data, length):
        return snappy_size(data, length, &header)
    if length < XERIAL_BYTES:
        return REFUSED
    while at < length:
        if length - at < 4:
            return REFUSED
        block = <int32_t>load32(data + at)
        at += 4
        if block < 0 or block > length - at:
            return REFUSED
        size = snappy_size(data + at, block, &header)
        if size < 0:
            return REFUSED
        total += size
        if total > BOUND_MAX:
            return REFUSED
        at += block
    return total


cdef int64_t snappy_size(const uint8_t *data, int64_t length, int *header) noexcept nogil:
    """The declared size of a raw block, and the bytes of its varint; REFUSED if no block of `length` can reach it."""
    cdef int64_t size = 0
    cdef int index
    for index in range(5):
        if index >= length:
            return REFUSED
        size |= <int64_t>(data[index] & 0x7F) << (7 * index)
        if data[index] < 0x80:
            header[0] = index + 1
            return size if size <= length * 22 and size <= BOUND_MAX else REFUSED
    return REFUSED


cdef int64_t read_snappy(const uint8_t *data, int64_t length, uint8_t *out, int64_t room) noexcept nogil:
    cdef int64_t at = XERIAL_BYTES, done = 0, size, block
    if not has_xerial_header(data, length):
        return read_snappy_block(data, length, out, room)
    while length - at >= 4:
        block = <int32_t>load32(data + at)
        at += 4
        if block < 0 or block > length - at:
            return REFUSED
        size = read_snappy_block(data + at, block, out + done, room - done)
        if size < 0:
            return REFUSED
        done += size
        at += block
    return done if at == length else REFUSED


cdef int64_t read_snappy_block(const uint8_t *data, int64_t length, uint8_t *out, int64_t room) noexcept nogil:
    """A block of literals and copies. Wide copies stay inside `room`; what they write too much is overwritten later."""
    cdef int header = 0
    cdef int64_t size = snappy_size(data, length, &header), at = header, to = 0, count, back, step
    cdef int tag, width, index
    if size < 0 or size > room:
        return REFUSED
    while at < length:
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            count = (tag >> 2) + 1
            if count > 60:
                width = <int>count - 60
                if width > length - at:
                    return REFUSED
                count = 0
                for index in range(width):
                    count |= <int64_t>data[at + index] << (8 * index)
                count += 1
                at += width
            if count > length - at or count > size - to:
                return REFUSED
            if count <= 16 and length - at >= 16 and room - to >= 16:
                memcpy(out + to, data + at, 16)
            else:
                memcpy(out + to, data + at, count)
            at += count
            to += count
            continue
        if tag & 3 == 1:
            if at >= length:
                return REFUSED
            count, back = (tag >> 2 & 7) + 4, <int64_t>(tag >> 5) << 8 | data[at]
            at += 1
        elif tag & 3 == 2:
            if length - at < 2:
                return REFUSED
            count, back = (tag >> 2) + 1, <int64_t>data[at] | <int64_t>data[at + 1] << 8
            at += 2
        else:
            if length - at < 4:
                return REFUSED
            count, back = (tag >> 2) + 1, little32(data + at)
            at += 4
        if back == 0 or back > to or count > size - to:
            return REFUSED
        if back >= 16 and room - to >= count + 16:
            for step in range(0, count, 16):
                memcpy(out + to + step, out + to + step - back, 16)
        elif back >= 8 and room - to >= count + 8:
            for step in range(0, count, 8):
                memcpy(out + to + step, out + to + step - back, 8)
        else:
            for step in range(count):
                out[to + step] = out[to + step - back]
        to += count
    return to if to == size else REFUSED


cdef int64_t write_snappy(const uint8_t *data, int64_t length, uint8_t *out, uint16_t *places) noexcept nogil:
    """The data in xerial blocks."""
    cdef int64_t at = 0, to = XERIAL_BYTES, block, size
    memcpy(out, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01", XERIAL_BYTES)
    while at < length:
        block = min(length - at, <int64_t>XERIAL_BLOCK)
        size = write_snappy_block(data + at, block, out + to + 4, places)
        store32(out + to, <uint32_t>size)
        to += 4 + size
        at += block
    return to


cdef int64_t write_snappy_block(const uint8_t *data, int64_t length, uint8_t *out, uint16_t *places) noexcept nogil:
    """At most 32 + 7/6 of `length` bytes. `places` has the last position of each hash of four bytes, 0 for none.

    The longer nothing is found, the fewer positions are searched.
    """
    cdef uint8_t *to = out
    cdef int64_t at = 1, done = 0, stop = length - SNAPPY_TAIL, found, matched
    cdef uint32_t misses, word, hashed
    cdef uint64_t differing
    word = <uint32_t>length
    while word > 0x7F:
        to[0] = <uint8_t>(word | 0x80)
        to += 1
        word >>= 7
    to[0] = <uint8_t>word
    to += 1
    memset(places, 0, SNAPPY_PLACES * sizeof(uint16_t))
    misses = 32
    while at < stop:
        memcpy(&word, data + at, 4)
        hashed = word * 0x1E35A7BDu >> 18
        found = places[hashed]
        places[hashed] = <uint16_t>at
        if memcmp(data + found, data + at, 4):
            at += misses >> 5
            misses += 1
            continue
        misses = 32
        matched = 4
        while at + matched + 8 <= length:
            differing = little64(data + found + matched) ^ little64(data + at + matched)
            if differing:  # its lowest set bit is in the first byte that differs
                matched += (TIERED_BITS(differing & (0 - differing)) - 1) >> 3
                break
            matched += 8
        while at + matched < length and data[found + matched] == data[at + matched]:
            matched += 1
        if 0 < at - done <= 16:  # the block has 16 bytes from here on, and `out` has room for them
            to[0] = <uint8_t>(at - done - 1 << 2)
            memcpy(to + 1, data + done, 16)
            to += 1 + at - done
        else:
            to = put_literal(to, data + done, at - done)
        to = put_copy(to, at - found, matched)
        at += matched
        done = at
        if at < stop:
            memcpy(&word, data + at - 1, 4)
            places[word * 0x1E35A7BDu >> 18] = <uint16_t>(at - 1)
    return put_literal(to, data + done, length - done) - out


cdef inline uint8_t *put_literal(uint8_t *to, const uint8_t *data, int64_t count) noexcept nogil:
    if count == 0:
        return to
    if count <= 60:
        to[0] = <uint8_t>(count - 1 << 2)
        to += 1
    else:
        to[0], to[1], to[2] = 61 << 2, count - 1 & 0xFF, count - 1 >> 8
        to += 3
    memcpy(to, data, count)
    return to + count


cdef inline uint8_t *put_copy(uint8_t *to, int64_t back, int64_t count) noexcept nogil:
    """Copies of at most 64 bytes, the last one of at least four."""
    cdef int64_t part
    while count > 0:
        part = count if count <= 64 else 64 if count >= 68 else 60
        count -= part
        if part < 12 and back < 2048:
            to[0], to[1] = back >> 8 << 5 | part - 4 << 2 | 1, back & 0xFF
            to += 2
        else:
            to[0], to[1], to[2] = part - 1 << 2 | 2, back & 0xFF, back >> 8
            to += 3
    return to


# -- rebuilding

REBUILDS_PACKED = True  # `rebuild_batches` takes compressed batches too


cdef int rebuild_packed(
    Codecs codecs, const uint8_t *data, Batch *batch, const uint8_t *keep, int64_t flag, bint is_rebased,
    int64_t horizon_ms, uint8_t **out, int64_t room,
) noexcept nogil:
    """`rebuild_section` of a compressed batch. Without effect: NO_ROOM if it might exceed `room`, LEFT_ALONE if refused."""
    cdef int codec = batch.bits & CODEC_BITS
    cdef const uint8_t *section = data + batch.position + HEADER_BYTES
    cdef int64_t bound = codecs.bound(codec, section, batch.size - HEADER_BYTES), most, size
    cdef Batch plain = batch[0]
    cdef uint8_t *inflated
    cdef uint8_t *rebuilt
    cdef uint8_t *end
    if bound < 0:
        return LEFT_ALONE
    most = bound + <int64_t>batch.count * REBUILT_GROWTH_MAX
    if HEADER_BYTES + codecs.write_bound(codec, most) > room:
        return NO_ROOM
    inflated = codecs.room(2 * HEADER_BYTES + bound + most)
    if not inflated:
        return LEFT_ALONE
    rebuilt = end = inflated + HEADER_BYTES + bound
    memcpy(inflated, data + batch.position, HEADER_BYTES)
    inflated[22] &= ~CODEC_BITS
    size = codecs.read(codec, section, batch.size - HEADER_BYTES, inflated + HEADER_BYTES, bound)
    if size < 0:
        return LEFT_ALONE
    plain.position, plain.size, plain.bits = 0, HEADER_BYTES + size, batch.bits & ~CODEC_BITS
    if rebuild_section(inflated, &plain, keep, flag, is_rebased, horizon_ms, &end):
        return LEFT_ALONE
    size = codecs.write(
        codec, rebuilt + HEADER_BYTES, end - rebuilt - HEADER_BYTES, out[0] + HEADER_BYTES, room - HEADER_BYTES
    )
    if size < 0:
        return LEFT_ALONE
    memcpy(out[0], rebuilt, HEADER_BYTES)
    out[0][22] |= codec
    store32(out[0] + 8, <uint32_t>(HEADER_BYTES + size - LENGTH_OVERHEAD))
    store32(out[0] + 17, crc32c_update(0, out[0] + CRC_START, HEADER_BYTES + size - CRC_START))
    out[0] += HEADER_BYTES + size
    return SOUND


load_codecs()
