# Join scattered keys or values in one buffer, as Arrow requires.
# Included by `_kernels.pyx`.

def gather(data, starts, lengths):
    """See `pure_kernels.gather`."""
    cdef const uint8_t[::1] view = data
    cdef const int64_t[::1] starts_ = starts
    cdef const int32_t[::1] lengths_ = lengths
    cdef Py_ssize_t length = view.shape[0], rows = starts_.shape[0], row, wrong = -1
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef int64_t total = 0
    if rows != lengths_.shape[0]:
        raise InvalidRequest("cannot gather bytes, starts and lengths differ in number", starts=rows, lengths=len(lengths))
    offsets = np.empty(rows + 1, np.int32)
    cdef int32_t[::1] offsets_ = offsets
    with nogil:
        offsets_[0] = 0
        for row in range(rows):
            if lengths_[row] > 0:
                if starts_[row] < 0 or starts_[row] > length - lengths_[row]:
                    wrong = row
                    break
                total += lengths_[row]
                if total > INT_MAX:
                    break
            offsets_[row + 1] = <int32_t>total
    if wrong >= 0:
        where = {"start": starts_[wrong], "length": lengths_[wrong]}
        raise InvalidRequest("cannot gather bytes, a range is outside the data", **where)
    if total > INT_MAX:
        raise InvalidRequest("cannot gather bytes, they exceed 32-bit offsets", bytes=int(lengths.clip(0).sum(dtype="i8")))
    gathered = np.empty(total, np.uint8)
    cdef uint8_t[::1] gathered_ = gathered
    cdef uint8_t *to = &gathered_[0] if total else NULL
    with nogil:
        for row in range(rows):
            if row + 16 < rows:
                TIERED_PREFETCH(bytes_ + starts_[row + 16])
            # Starts were checked above. The copied length comes from the offsets, not from `lengths_`.
            if offsets_[row + 1] > offsets_[row]:
                memcpy(to + offsets_[row], bytes_ + starts_[row], offsets_[row + 1] - offsets_[row])
    return offsets, gathered
