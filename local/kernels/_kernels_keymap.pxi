# The newest record of every key: an exact map in bounded memory. Included by `_kernels.pyx`.
#
# A slot is three 32-bit words, 12 bytes:
#
#   word 0   bit 31: used · bits 0-30: position of the key's length varint in its buffer, for the newest record
#   word 1   ordinal of the newest record, low 32 bits
#   word 2   bits 0-3: ordinal, high bits · bits 4-17: number of the buffer · bits 18-31: tag from the key's hash
#
# The map uses open addressing with linear probing. The home slot is the high word of hash times number of slots. The
# tag rules out most other keys. Then the key itself is compared in its buffer, so two keys are never taken for one.
# Rows are processed in blocks, in three passes:
#
# 1. Hash the keys and prefetch their slots.
# 2. Prefetch the keys that the slots point to.
# 3. Compare and enter the keys.

from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

cdef extern from * nogil:
    """
    #if defined(__SIZEOF_INT128__)
    static uint64_t TIERED_HIGH(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }
    #else
    static uint64_t TIERED_HIGH(uint64_t a, uint64_t b) {
        uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
        uint64_t low = al * bl, m1 = ah * bl + (low >> 32), m2 = al * bh + (uint32_t)m1;
        return ah * bh + (m1 >> 32) + (m2 >> 32);
    }
    #endif
    """
    uint64_t TIERED_HIGH(uint64_t a, uint64_t b)

cdef extern from * nogil:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    /* Zeroed memory, in pages of 2 MiB where the system has them. A map is read at random, and with small pages the
     * address translation is most of the cost. */
    #define TIERED_PAGE ((size_t)2 << 20)
    static void *TIERED_ZEROS(size_t size, void **whole, size_t *whole_size) {
        size_t rounded = (size + TIERED_PAGE - 1) / TIERED_PAGE * TIERED_PAGE;
        *whole_size = rounded + TIERED_PAGE;
        *whole = mmap(NULL, *whole_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (*whole == MAP_FAILED) { *whole = NULL; return NULL; }
        void *start = (void *)(((uintptr_t)*whole + TIERED_PAGE - 1) / TIERED_PAGE * TIERED_PAGE);
        if (size >= TIERED_PAGE) (void)madvise(start, rounded, MADV_HUGEPAGE);
        return start;
    }
    static void TIERED_FREE_ZEROS(void *whole, size_t size) { if (whole) munmap(whole, size); }
    #else
    #include <stdlib.h>
    static void *TIERED_ZEROS(size_t size, void **whole, size_t *whole_size) {
        *whole_size = size;
        return *whole = calloc(size, 1);
    }
    static void TIERED_FREE_ZEROS(void *whole, size_t size) { (void)size; free(whole); }
    #endif
    """
    void *TIERED_ZEROS(size_t size, void **whole, size_t *whole_size)
    void TIERED_FREE_ZEROS(void *whole, size_t size)

cdef enum:
    BLOCK = 64
    BUFFERS_MAX = 1 << 14
    TAG_BITS = 14
    ARENA_BYTES = 1 << 20

cdef uint64_t ORDINAL_MAX = (<uint64_t>1 << 36) - 1
cdef uint32_t USED = <uint32_t>1 << 31

cdef struct Slot:
    uint32_t place
    uint32_t ordinal
    uint32_t rest


cdef inline uint64_t mix(uint64_t a, uint64_t b) noexcept nogil:
    return TIERED_HIGH(a, b) ^ (a * b)


cdef inline uint64_t load_any64(const uint8_t *at) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, at, 8)
    return word


cdef inline uint64_t load_any32(const uint8_t *at) noexcept nogil:
    cdef uint32_t word
    memcpy(&word, at, 4)
    return word


cdef inline uint64_t hash_key(const uint8_t *key, Py_ssize_t length, uint64_t seed) noexcept nogil:
    """Hash a key.

    The seed differs for each map; the quality of the hash affects speed only, never the result.
    Reads 16 bytes per step. The last reads overlap: this is safe because the length is hashed too.
    """
    cdef uint64_t hashed = seed ^ (<uint64_t>length * 0x9E3779B97F4A7C15u), first = 0, last = 0
    cdef Py_ssize_t left = length
    while left > 16:
        hashed = mix(load_any64(key) ^ 0xA0761D6478BD642Fu, load_any64(key + 8) ^ hashed)
        key += 16
        left -= 16
    if left >= 8:
        first, last = load_any64(key), load_any64(key + left - 8)
    elif left >= 4:
        first, last = load_any32(key), load_any32(key + left - 4)
    elif left > 0:
        first = <uint64_t>key[0] << 16 | <uint64_t>key[left >> 1] << 8 | key[left - 1]
    return mix(mix(first ^ 0xE7037ED1A0B428DBu, last ^ hashed), 0x8EBC6AF09C88C6E3u ^ <uint64_t>length)


cdef inline bint is_equal(const uint8_t *one, const uint8_t *other, Py_ssize_t length) noexcept nogil:
    if length > 64 or length < 8:
        return memcmp(one, other, length) == 0
    while length > 8:
        if load_any64(one) != load_any64(other):
            return False
        one += 8
        other += 8
        length -= 8
    return load_any64(one + length - 8) == load_any64(other + length - 8)


cdef class KeyMap:
    """See `pure_key_map.KeyMap`."""

    cdef Slot *slots
    cdef void *whole
    cdef size_t whole_size
    cdef uint64_t slot_count, seed, hash_mask
    cdef readonly int64_t entries_max
    cdef int64_t used, ordinals_end
    cdef const uint8_t **starts
    cdef Py_ssize_t *sizes
    cdef int buffers
    cdef list held
    cdef readonly int64_t arena_bytes
    cdef readonly int64_t arena_bytes_max
    cdef int arena
    cdef Py_ssize_t arena_used, arena_size
    cdef uint8_t *arena_start

    def __cinit__(self, int64_t slots, int64_t entries_max, *, int64_t arena_bytes_max=0, uint64_t seed=0,
                  uint64_t hash_mask=0xFFFFFFFFFFFFFFFFu):
        if not 0 < entries_max < slots:
            raise InvalidRequest("making a key map, not 0 < entries < slots", slots=slots, entries=entries_max)
        self.slot_count, self.entries_max, self.seed = slots, entries_max, seed
        self.arena_bytes_max, self.arena, self.hash_mask = arena_bytes_max, -1, hash_mask
        self.held = []
        self.slots = <Slot *>TIERED_ZEROS(<size_t>slots * sizeof(Slot), &self.whole, &self.whole_size)
        self.starts = <const uint8_t **>malloc(BUFFERS_MAX * sizeof(void *))
        self.sizes = <Py_ssize_t *>malloc(BUFFERS_MAX * sizeof(Py_ssize_t))
        if self.slots == NULL or self.starts == NULL or self.sizes == NULL:
            raise MemoryError

    def __dealloc__(self):
        TIERED_FREE_ZEROS(self.whole, self.whole_size)
        free(self.starts)
        free(self.sizes)

    def __len__(self):
        return self.used

    @property
    def memory_bytes(self):
        return self.slot_count * sizeof(Slot) + self.arena_bytes

    def hold(self, data):
        """See `pure_key_map.KeyMap`."""
        cdef const uint8_t[::1] view = data
        if view.shape[0] > INT_MAX:
            raise InvalidRequest("holding keys, more bytes than a segment has", bytes=view.shape[0])
        return self._hold(view, &view[0] if view.shape[0] else NULL, view.shape[0])

    cdef int _hold(self, owner, const uint8_t *start, Py_ssize_t size) except -1:
        if self.buffers == BUFFERS_MAX:
            raise InvalidRequest("holding keys, too many segments in one pass", limit=BUFFERS_MAX)
        self.held.append(owner)
        self.starts[self.buffers], self.sizes[self.buffers] = start, size
        self.buffers += 1
        return self.buffers - 1

    def add(self, data, starts, lengths, skip, int64_t first_ordinal, keep, *, int buffer=-1, int64_t position=0):
        """See `pure_key_map.KeyMap`."""
        cdef const uint8_t[::1] view = data
        cdef const int64_t[::1] starts_ = starts
        cdef const int32_t[::1] lengths_ = lengths
        cdef const uint8_t[::1] skip_ = skip.view(np.uint8)
        cdef uint8_t[::1] keep_ = keep
        cdef Py_ssize_t rows = starts_.shape[0], done = 0
        cdef int64_t flags = min(<int64_t>keep_.shape[0] * 8, <int64_t>ORDINAL_MAX)
        if rows != lengths_.shape[0] or rows != skip_.shape[0] or buffer >= self.buffers:
            raise InvalidRequest("cannot add keys, columns differ in length or the buffer is unknown", rows=rows, buffer=buffer)
        # The bound covers all ordinals entered so far: the map may clear any of their bits.
        if first_ordinal < 0 or first_ordinal > flags - rows or self.ordinals_end > flags:
            raise InvalidRequest("cannot add keys, ordinals are outside the flags", first=first_ordinal, rows=rows)
        if not self._are_inside(view, starts_, lengths_, buffer, position):
            raise InvalidRequest("cannot add keys, a key is outside the data", rows=rows)
        if rows == 0:
            return 0
        self.ordinals_end = max(self.ordinals_end, first_ordinal + rows)
        # Keys in a held buffer are read only from there: the bytes that are hashed are the bytes compared later.
        cdef const uint8_t *bytes_ = &view[0] if view.shape[0] else NULL
        if buffer >= 0:
            bytes_ = self.starts[buffer] + position
        while True:
            with nogil:
                done = self._add(
                    bytes_, &starts_[0], &lengths_[0], &skip_[0], done, rows, first_ordinal, &keep_[0], buffer, position
                )
            if done >= 0:
                return done
            done = -done - 1
            if not self._more_arena(lengths_[done] + varint_bytes(lengths_[done])):
                return done

    def add_batches(self, data, table, roles, int64_t first_ordinal, keep, tombstones, *, int buffer, int64_t position):
        """See `pure_key_map.KeyMap`."""
        cdef const uint8_t[::1] view = data
        cdef const uint8_t[::1] roles_ = roles
        cdef uint8_t[::1] keep_ = keep, tombstones_ = tombstones
        cdef _Table rows = _Table(table)
        cdef int64_t total = int(table.record_counts.sum(dtype=np.int64)), keyless = 0
        cdef int64_t flags = min(min(keep_.shape[0], tombstones_.shape[0]) * 8, <int64_t>ORDINAL_MAX)
        cdef Py_ssize_t bad_row = 0
        cdef int reason
        if rows.rows != roles_.shape[0] or not 0 <= buffer < self.buffers or (table.record_counts < 0).any():
            raise InvalidRequest("cannot add batches, a role is missing or the buffer is unknown", buffer=buffer)
        if first_ordinal < 0 or first_ordinal > flags - total or self.ordinals_end > flags:
            raise InvalidRequest("cannot add keys, ordinals are outside the flags", first=first_ordinal, rows=total)
        if position < 0 or position > self.sizes[buffer] - view.shape[0]:
            raise InvalidRequest("cannot add keys, a key is outside the data", rows=total)
        if rows.rows == 0:
            return 0
        self.ordinals_end = max(self.ordinals_end, first_ordinal + total)
        # Keys are read only from the held buffer: the bytes that are hashed are the bytes compared later.
        cdef const uint8_t *bytes_ = self.starts[buffer] + position
        with nogil:
            reason = enter_batches(
                self, bytes_, view.shape[0], rows, &roles_[0], <uint64_t>first_ordinal, &keep_[0], &tombstones_[0],
                buffer, position, &bad_row, &keyless,
            )
        if reason > SOUND:
            raise _wrong(table, bad_row, reason, data, True)
        return None if reason == MAP_FULL else keyless

    def find(self, data, starts, lengths):
        """See `pure_key_map.KeyMap`."""
        cdef const uint8_t[::1] view = data
        cdef const int64_t[::1] starts_ = starts
        cdef const int32_t[::1] lengths_ = lengths
        cdef Py_ssize_t rows = starts_.shape[0]
        if rows != lengths_.shape[0] or not self._are_inside(view, starts_, lengths_, -1, 0):
            raise InvalidRequest("cannot find keys, columns differ or a key is outside the data", rows=rows)
        found = np.zeros(rows, np.uint8)
        cdef uint8_t[::1] found_ = found
        if rows:
            with nogil:
                self._find(&view[0] if view.shape[0] else NULL, &starts_[0], &lengths_[0], rows, &found_[0])
        return found.view(np.bool_)

    cdef bint _are_inside(
        self, const uint8_t[::1] data, const int64_t[::1] starts, const int32_t[::1] lengths, int buffer, int64_t position
    ) noexcept nogil:
        cdef Py_ssize_t row, size = data.shape[0]
        if buffer >= 0 and (position < 0 or position + size > self.sizes[buffer]):
            return False
        for row in range(starts.shape[0]):
            if lengths[row] >= 0 and (starts[row] < varint_bytes(lengths[row]) or starts[row] > size - lengths[row]):
                return False
        return True

    cdef Py_ssize_t _add(
        self, const uint8_t *data, const int64_t *starts, const int32_t *lengths, const uint8_t *skip, Py_ssize_t row,
        Py_ssize_t rows, int64_t first_ordinal, uint8_t *keep, int buffer, int64_t position,
    ) noexcept nogil:
        """The number of rows done; -(row + 1) if the arena has no room for the next key."""
        cdef uint64_t hashes[BLOCK]
        cdef uint64_t ordinal, old
        cdef uint32_t tag
        cdef Py_ssize_t here, end, place
        cdef Slot *slot
        while row < rows:
            end = row + BLOCK if row + BLOCK < rows else rows
            for here in range(row, end):
                if lengths[here] >= 0 and not skip[here]:
                    hashes[here - row] = hash_key(data + starts[here], lengths[here], self.seed) & self.hash_mask
                    self._prefetch_slot(hashes[here - row])
            for here in range(row, end):
                if lengths[here] >= 0 and not skip[here]:
                    self._prefetch_key(hashes[here - row], lengths[here])
            for here in range(row, end):
                if lengths[here] < 0 or skip[here]:
                    continue
                slot = self._slot_of(data + starts[here], lengths[here], hashes[here - row])
                place = -1 if buffer < 0 else self._place_of(buffer, position + starts[here], lengths[here])
                if slot.place & USED:
                    old = slot.ordinal | <uint64_t>(slot.rest & 15) << 32
                    keep[old >> 3] &= ~(<uint8_t>1 << (old & 7))
                elif self.used >= self.entries_max:
                    return here
                elif place < 0 and not self._spool(data + starts[here], lengths[here], slot):
                    return -here - 1
                else:
                    self.used += 1
                if place >= 0:
                    slot.place = USED | <uint32_t>place
                    slot.rest = <uint32_t>buffer << 4
                slot.rest &= <uint32_t>(BUFFERS_MAX - 1) << 4
                ordinal = <uint64_t>(first_ordinal + here)
                tag = <uint32_t>(hashes[here - row] & ((1 << TAG_BITS) - 1))
                slot.ordinal = <uint32_t>ordinal
                slot.rest |= <uint32_t>(ordinal >> 32) | tag << (32 - TAG_BITS)
            row = end
        return rows

    cdef inline bint _turn(self, Queue *queue, const uint8_t *start, int buffer, uint8_t *keep) noexcept nogil:
        """Prefetch the keys of the full block, and enter the previous block; False if the map is full."""
        cdef int here, other = 1 - queue.filling
        for here in range(queue.filled):
            self._prefetch_key(queue.blocks[queue.filling][here].hashed, queue.blocks[queue.filling][here].length)
        if not self._enter_block(queue.blocks[other], queue.asked, start, buffer, keep):
            return False
        queue.asked, queue.filled, queue.filling = queue.filled, 0, other
        return True

    cdef bint _drain(self, Queue *queue, const uint8_t *start, int buffer, uint8_t *keep) noexcept nogil:
        return self._turn(queue, start, buffer, keep) and self._turn(queue, start, buffer, keep)

    cdef bint _enter_block(
        self, Waiting *block, int count, const uint8_t *start, int buffer, uint8_t *keep
    ) noexcept nogil:
        cdef Waiting *one
        cdef Slot *slot
        cdef uint64_t old
        cdef uint32_t tag
        cdef int here
        for here in range(count):
            one = &block[here]
            slot = self._slot_of(start + one.key, one.length, one.hashed)
            if slot.place & USED:
                old = slot.ordinal | <uint64_t>(slot.rest & 15) << 32
                keep[old >> 3] &= ~(<uint8_t>1 << (old & 7))
            elif self.used >= self.entries_max:
                return False
            else:
                self.used += 1
            tag = <uint32_t>(one.hashed & ((1 << TAG_BITS) - 1))
            slot.place = USED | <uint32_t>one.place
            slot.ordinal = <uint32_t>one.ordinal
            slot.rest = <uint32_t>(one.ordinal >> 32) | <uint32_t>buffer << 4 | tag << (32 - TAG_BITS)
        return True

    cdef void _find(
        self, const uint8_t *data, const int64_t *starts, const int32_t *lengths, Py_ssize_t rows, uint8_t *found
    ) noexcept nogil:
        cdef uint64_t hashes[BLOCK]
        cdef Py_ssize_t row = 0, here, end
        while row < rows:
            end = row + BLOCK if row + BLOCK < rows else rows
            for here in range(row, end):
                if lengths[here] >= 0:
                    hashes[here - row] = hash_key(data + starts[here], lengths[here], self.seed) & self.hash_mask
                    self._prefetch_slot(hashes[here - row])
            for here in range(row, end):
                if lengths[here] >= 0:
                    self._prefetch_key(hashes[here - row], lengths[here])
            for here in range(row, end):
                if lengths[here] >= 0:
                    found[here] = self._slot_of(data + starts[here], lengths[here], hashes[here - row]).place >> 31
            row = end

    cdef inline Py_ssize_t _place_of(self, int buffer, Py_ssize_t start, int32_t length) noexcept nogil:
        """The position of the key's length varint in its held buffer; -1 if the varint is overlong."""
        cdef int32_t told
        cdef Py_ssize_t place = start - varint_bytes(length)
        if read_int(self.starts[buffer], place, start, &told) != start or told != length:
            return -1
        return place

    cdef inline void _prefetch_slot(self, uint64_t hashed) noexcept nogil:
        cdef Slot *slot = &self.slots[TIERED_HIGH(hashed, self.slot_count)]
        TIERED_PREFETCH(slot)
        TIERED_PREFETCH(<const uint8_t *>slot + sizeof(Slot) - 1)

    cdef inline void _prefetch_key(self, uint64_t hashed, int32_t length) noexcept nogil:
        cdef Slot *slot = &self.slots[TIERED_HIGH(hashed, self.slot_count)]
        cdef const uint8_t *at
        if slot.place & USED and slot.rest >> (32 - TAG_BITS) == (hashed & ((1 << TAG_BITS) - 1)):
            at = self.starts[slot.rest >> 4 & (BUFFERS_MAX - 1)] + (slot.place & ~USED)
            TIERED_PREFETCH(at)
            TIERED_PREFETCH(at + length)

    cdef inline Slot *_slot_of(self, const uint8_t *key, Py_ssize_t length, uint64_t hashed) noexcept nogil:
        """The slot of the key, or the free slot for it. A free slot always exists: entries < slots."""
        cdef uint64_t at = TIERED_HIGH(hashed, self.slot_count)
        cdef uint32_t tag = <uint32_t>(hashed & ((1 << TAG_BITS) - 1))
        cdef Slot *slot
        while True:
            slot = &self.slots[at]
            if not slot.place & USED:
                return slot
            if slot.rest >> (32 - TAG_BITS) == tag and self._is_key(slot, key, length):
                return slot
            at += 1
            if at == self.slot_count:
                at = 0

    cdef inline bint _is_key(self, Slot *slot, const uint8_t *key, Py_ssize_t length) noexcept nogil:
        cdef int number = slot.rest >> 4 & (BUFFERS_MAX - 1)
        cdef int32_t told
        cdef Py_ssize_t at = read_int(self.starts[number], slot.place & ~USED, self.sizes[number], &told)
        # The bounds were checked on entry. They are checked again because the buffer may be a mapped file.
        if at < 0 or told != length or at > self.sizes[number] - length:
            return False
        return is_equal(self.starts[number] + at, key, length)

    cdef bint _spool(self, const uint8_t *key, int32_t length, Slot *slot) noexcept nogil:
        """Copy a key whose own buffer will be freed (it was decompressed); False if there is no room."""
        cdef int need = varint_bytes(length) + length
        cdef uint8_t *to
        if self.arena < 0 or self.arena_used + need > self.arena_size:
            return False
        to = put_varint(self.arena_start + self.arena_used, length)
        memcpy(to, key, length)
        slot.place = USED | <uint32_t>self.arena_used
        slot.rest = <uint32_t>self.arena << 4
        self.arena_used += need
        return True

    cdef bint _more_arena(self, Py_ssize_t need) except -1:
        size = max(need, min(max(ARENA_BYTES, self.arena_bytes), 1 << 30))
        size = min(size, self.arena_bytes_max - self.arena_bytes)
        if size < need:
            return False
        owner = np.empty(size, np.uint8)
        cdef uint8_t[::1] view = owner
        self.arena = self._hold(owner, &view[0], size)
        self.arena_start, self.arena_used, self.arena_size = &view[0], 0, size
        self.arena_bytes += size
        return True
