# Pass one of the cleaner in one loop (checksum, records, keys into the map): the compiled form of `KeyMap.add_batches`.
# Included by `_kernels.pyx`.
#
# The checksum reads a batch from memory; decoding and hashing then find it in the CPU cache. A record with a key then
# waits twice, in blocks: for the prefetch of its slot, and for the prefetch of the key that the slot points to. The
# cache misses of many records thus overlap, and each slot and key has arrived when it is read.

cdef enum:
    WAITING = 32  # records per block
    TAKE = 0
    PASS_BY = 1  # a control batch: its keys do not count, its records stay
    LET_GO = 2  # a batch of an aborted transaction: its keys do not count, its records are removed
    MAP_FULL = -1

cdef struct Waiting:
    uint64_t hashed
    uint64_t ordinal
    Py_ssize_t place  # position of the key's length varint in the held buffer
    Py_ssize_t key
    int32_t length

cdef struct Queue:
    Waiting blocks[2][WAITING]
    int filling  # the block that receives records
    int filled
    int asked  # records of the other block, whose keys are being prefetched


cdef int enter_batches(
    KeyMap keys, const uint8_t *data, Py_ssize_t length, _Table rows, const uint8_t *roles, uint64_t ordinal,
    uint8_t *keep, uint8_t *tombstones, int buffer, Py_ssize_t position, Py_ssize_t *bad_row, int64_t *keyless,
) noexcept nogil:
    """SOUND, MAP_FULL, or the fault of the batch `bad_row`. Records before the fault were entered."""
    cdef Queue queue
    cdef Py_ssize_t row
    cdef int reason = SOUND
    cdef Batch batch
    queue.filling = queue.filled = queue.asked = 0
    for row in range(rows.rows):
        batch = rows.row(row)
        bad_row[0] = row
        reason = check_crc(data, length, &batch)
        if not reason:
            reason = enter_batch(keys, data, length, &batch, roles[row], ordinal, keep, tombstones, buffer, position,
                                 &queue, keyless)
        if reason:
            break
        ordinal += <uint64_t>batch.count
    if reason == MAP_FULL or not keys._drain(&queue, data - position, buffer, keep):
        return MAP_FULL
    return reason


cdef int enter_batch(
    KeyMap keys, const uint8_t *data, Py_ssize_t length, Batch *batch, uint8_t role, uint64_t ordinal, uint8_t *keep,
    uint8_t *tombstones, int buffer, Py_ssize_t position, Queue *queue, int64_t *keyless,
) noexcept nogil:
    cdef PlainRecord record
    cdef Waiting *one
    cdef Py_ssize_t at = batch.position + HEADER_BYTES, end = batch.position + batch.size, key_at
    cdef int64_t last_delta = -1
    cdef int32_t index
    if <int64_t>batch.count * RECORD_BYTES_MIN > end - at:
        return WRONG_COUNT
    for index in range(batch.count):
        if read_record(data, at, end, &record):
            return WRONG_RECORD
        if record.offset_delta <= last_delta or record.offset_delta > batch.last_delta:
            return WRONG_ORDER
        last_delta = record.offset_delta
        at = record.end
        if role == TAKE and record.key_length >= 0:
            if record.value_length < 0:
                tombstones[ordinal >> 3] |= <uint8_t>1 << (ordinal & 7)
            one = &queue.blocks[queue.filling][queue.filled]
            one.ordinal, one.key, one.length = ordinal, position + record.key_start, record.key_length
            one.place = position + record.key_place
            one.hashed = hash_key(data + record.key_start, record.key_length, keys.seed) & keys.hash_mask
            keys._prefetch_slot(one.hashed)
            queue.filled += 1
            if queue.filled == WAITING and not keys._turn(queue, data - position, buffer, keep):
                return MAP_FULL
        elif role != PASS_BY:
            keep[ordinal >> 3] &= ~(<uint8_t>1 << (ordinal & 7))
            keyless[0] += role == TAKE
        ordinal += 1
    return SOUND if at == end else LEFT_OVER
