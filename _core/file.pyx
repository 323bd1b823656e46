"""The two file objects that HDF5 reads and writes a run through.

JournaledFile belongs to the writer: what HDF5 appends goes to the disk at once, what it overwrites below the
committed end stays in memory until `seal` has made a redo journal of it. ReadView belongs to readers: it never
writes and lays the newest journal over what it reads. See docs/format.md for the order of a commit.

Nothing raised here may reach HDF5, which would be left with half-freed identifiers: failures are recorded in
`error`, HDF5 is told that all went well, and whoever called HDF5 looks at `check` afterwards. Both are compiled
so that no signal handler and no other bytecode can run inside a callback of HDF5.
"""

import os

from cpython.bytearray cimport PyByteArray_AsString
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.errno cimport EINTR, EIO, ENOMEM, ENOSPC, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cimport cython

cdef extern from *:
    """
    #include <stdint.h>
    #ifdef _WIN32
    #include <io.h>
    static int64_t read_some(int fd, void *to, uint64_t size, int64_t offset)
    { return _lseeki64(fd, offset, 0) < 0 ? -1 : _read(fd, to, (unsigned)(size > 1 << 30 ? 1 << 30 : size)); }
    static int64_t write_some(int fd, const void *from, uint64_t size, int64_t offset)
    { return _lseeki64(fd, offset, 0) < 0 ? -1 : _write(fd, from, (unsigned)(size > 1 << 30 ? 1 << 30 : size)); }
    static int sync_file(int fd) { return _commit(fd); }
    #else
    #include <unistd.h>
    static int64_t read_some(int fd, void *to, uint64_t size, int64_t offset)
    { return pread(fd, to, size, offset); }
    static int64_t write_some(int fd, const void *from, uint64_t size, int64_t offset)
    { return pwrite(fd, from, size, offset); }
    static int sync_file(int fd) { return fsync(fd); }
    #endif
    """
    int64_t read_some(int fd, void *to, uint64_t size, int64_t offset) noexcept nogil
    int64_t write_some(int fd, const void *start, uint64_t size, int64_t offset) noexcept nogil
    int sync_file(int fd) noexcept nogil

# Unit in which overwritten bytes are held and journaled: one disk sector.
cdef enum:
    BLOCK = 512
# Unit in which a reader keeps the file's metadata in memory.
cdef enum:
    PAGE = 16384
cdef enum:
    SUPERBLOCK = 48


cdef int read_all(int fd, uint8_t *to, int64_t size, int64_t offset) noexcept nogil:
    """Fill `to` from the file, zeros past its end; return 0 or errno."""
    cdef int64_t done = 0, got
    while done < size:
        got = read_some(fd, to + done, size - done, offset + done)
        if got < 0 and errno == EINTR:
            continue
        if got <= 0:
            memset(to + done, 0, size - done)
            return 0 if got == 0 else (errno or EIO)
        done += got
    return 0


cdef int write_all(int fd, const uint8_t *start, int64_t size, int64_t offset) noexcept nogil:
    """Write all bytes; return 0 or errno."""
    cdef int64_t done = 0, put
    while done < size:
        put = write_some(fd, start + done, size - done, offset + done)
        if put < 0 and errno == EINTR:
            continue
        if put < 0:
            return errno or EIO
        if put == 0:
            return ENOSPC
        done += put
    return 0


@cython.overflowcheck(False)                        # a hash wraps around on purpose
cdef inline uint32_t rotate(uint32_t x, int k) noexcept nogil:
    return (x << k) | (x >> (32 - k))


cdef inline uint32_t word(const uint8_t *p) noexcept nogil:
    return p[0] | (<uint32_t> p[1] << 8) | (<uint32_t> p[2] << 16) | (<uint32_t> p[3] << 24)


@cython.overflowcheck(False)
cdef uint32_t lookup3(const uint8_t *key) noexcept nogil:
    """Jenkins' lookup3 over the first 44 bytes of a superblock, as HDF5 checks them."""
    cdef uint32_t a, b, c
    cdef int left = 44
    a = b = c = 0xDEADBEEFu + 44u
    while left > 12:
        a += word(key); b += word(key + 4); c += word(key + 8)
        a -= c; a ^= rotate(c, 4); c += b
        b -= a; b ^= rotate(a, 6); a += c
        c -= b; c ^= rotate(b, 8); b += a
        a -= c; a ^= rotate(c, 16); c += b
        b -= a; b ^= rotate(a, 19); a += c
        c -= b; c ^= rotate(b, 4); b += a
        key += 12; left -= 12
    a += word(key); b += word(key + 4)          # 44 = 3 * 12 + 8: the last group has two words
    c ^= b; c -= rotate(b, 14)
    a ^= c; a -= rotate(c, 11)
    b ^= a; b -= rotate(a, 25)
    c ^= b; c -= rotate(b, 16)
    a ^= c; a -= rotate(c, 4)
    b ^= a; b -= rotate(a, 14)
    c ^= b; c -= rotate(b, 24)
    return c


cdef void clear_open_flag(uint8_t *superblock) noexcept nogil:
    """Make the superblock say that nobody has the file open: a killed writer must not lock readers out."""
    cdef uint32_t check
    if superblock[8] == 3 and superblock[11] != 0:
        superblock[11] = 0
        check = lookup3(superblock)
        memcpy(superblock + 44, &check, 4)


def superblock_check(const uint8_t[::1] data not None):
    """Return the checksum that HDF5 keeps behind the first 44 bytes of a superblock."""
    if data.shape[0] < 44:
        raise ValueError(f"a superblock has 48 bytes, found {data.shape[0]}")
    return lookup3(&data[0])


@cython.final
cdef class ReadView:
    """A read-only file for HDF5: pages in memory, with the newest journal laid over them."""

    cdef int fd
    cdef int64_t position
    cdef dict pages
    cdef bytes journal
    cdef readonly int64_t end
    cdef readonly int error
    cdef readonly int fresh
    cdef object __weakref__

    def __init__(self, int fd):
        self.fd, self.pages, self.journal = fd, {}, b""

    def load(self, int64_t end, bytes journal not None):
        """Read every page known so far again and lay `journal` over them; the file ends at byte `end`."""
        self.end, self.journal, self.error, self.fresh = end, journal, 0, 0
        for number in list(self.pages):
            self.pages[number] = self.page_from_disk(number)

    cdef bytearray page_from_disk(self, int64_t number):
        cdef bytearray page = bytearray(PAGE)
        cdef int failed = self.fetch(<uint8_t *> PyByteArray_AsString(page), PAGE, number * PAGE)
        if failed and not self.error:
            self.error = failed
        return page

    cdef int fetch(self, uint8_t *to, int64_t size, int64_t start) noexcept:
        """Read from the disk and lay the journal over it."""
        cdef bytes journal = self.journal               # ours while we read: `load` may take another meanwhile
        cdef const uint8_t *entry = <const uint8_t *> PyBytes_AsString(journal)
        cdef const uint8_t *stop = entry + len(journal)
        cdef int64_t offset, first, last
        cdef uint32_t length
        cdef int failed
        with nogil:
            failed = read_all(self.fd, to, size, start)
            while entry + 12 <= stop:
                memcpy(&offset, entry, 8)
                memcpy(&length, entry + 8, 4)
                entry += 12
                first, last = max(offset, start), min(offset + length, start + size)
                if first < last:
                    memcpy(to + (first - start), entry + (first - offset), last - first)
                entry += length
        return failed

    def read_at(self, int64_t offset, int64_t size):
        """Return `size` bytes at `offset` as the newest commit has them, zeros past the end of the file."""
        cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
        cdef int failed = self.fetch(<uint8_t *> PyBytes_AsString(out), size, offset)
        if failed:
            raise OSError(failed, os.strerror(failed))
        return out

    def seek(self, int64_t offset, int whence=0):
        self.position = offset if whence == 0 else self.end
        return self.position

    def tell(self):
        return self.position

    def readinto(self, unsigned char[::1] out):
        cdef int64_t size = out.shape[0], done = 0, number, within, n
        cdef bytearray page
        while done < size:
            number, within = (self.position + done) // PAGE, (self.position + done) % PAGE
            page = self.pages.get(number)
            if page is None:
                page = self.pages[number] = self.page_from_disk(number)
                self.fresh += 1
            n = min(PAGE - within, size - done)
            memcpy(&out[done], PyByteArray_AsString(page) + within, n)
            done += n
        self.position += size
        return size

    def read(self, int64_t size=-1):
        out = bytearray(size)
        if size > 0:
            self.readinto(out)
        return bytes(out)

    def write(self, data):
        self.error = EIO                            # HDF5 has no reason to write here; refuse without raising
        self.position += len(data)
        return len(data)

    def truncate(self, size=None):
        return size

    def flush(self):
        pass


cdef class JournaledFile:
    """The writer's file: appends go through, overwrites of committed bytes wait for `seal`.

    Owns descriptor `fd`. Before `begin` every write goes straight to the disk (a file being created).
    Tests subclass it and override `put` and `sync` to die, to tear a write or to fail.
    """

    cdef readonly int fd
    cdef int64_t position
    cdef dict held                                  # block number -> bytearray(BLOCK), as HDF5 wants it
    cdef readonly int64_t base                      # committed end: below it overwrites are held
    cdef readonly int64_t end                       # end of file as HDF5 declared it last
    cdef readonly int64_t size                      # one past the last byte ever written
    cdef readonly int64_t last_offset, last_size    # the last write that HDF5 made
    cdef readonly int error
    cdef readonly bint live, dead
    cdef object __weakref__

    def __init__(self, int fd):
        self.fd, self.held = fd, {}

    @property
    def held_blocks(self):
        """Number of committed blocks whose new content waits for `seal`."""
        return len(self.held)

    # --- what HDF5 calls

    def seek(self, int64_t offset, int whence=0):
        self.position = offset if whence == 0 else max(self.size, self.end)
        return self.position

    def tell(self):
        return self.position

    def readinto(self, unsigned char[::1] out):
        cdef int64_t size = out.shape[0]
        cdef int failed = 0
        if size:
            failed = self.fetch(&out[0], size, self.position)
        if failed and not self.error:
            self.error = failed
        self.position += size
        return size

    def read(self, int64_t size=-1):
        out = bytearray(size)
        if size > 0:
            self.readinto(out)
        return bytes(out)

    def write(self, const unsigned char[::1] data):
        cdef int64_t size = data.shape[0], offset = self.position
        cdef int failed = 0
        cdef bytearray copy
        self.position += size
        if self.dead or self.error or size == 0:
            return size
        try:
            if offset == 0 and size == SUPERBLOCK:
                copy = bytearray(data)
                clear_open_flag(<uint8_t *> PyByteArray_AsString(copy))
                data = copy
            self.last_offset, self.last_size = offset, size
            self.size = max(self.size, offset + size)
            if not self.live or offset >= self.base:
                failed = self.put(offset, data)
            else:
                if offset + size > self.base:
                    failed = self.put(self.base, data[self.base - offset:])
                    data = data[:self.base - offset]
                failed = self.hold(&data[0], data.shape[0], offset) or failed
        except MemoryError:
            failed = ENOMEM
        except BaseException:                       # never into HDF5: recorded, and raised by check()
            failed = EIO
        if failed:
            self.error = failed
        return size

    def truncate(self, size=None):
        self.end = size
        return size

    def flush(self):
        pass

    # --- what the package calls

    def begin(self, int64_t base):
        """Take bytes below `base` as committed: from now on overwriting them waits for `seal`."""
        self.base = self.end = base
        self.size = max(self.size, base)
        self.live = True

    def check(self):
        """Raise OSError if a read or write failed since the file was opened."""
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def read_at(self, int64_t offset, int64_t size):
        """Return `size` bytes at `offset` as HDF5 would see them: uncommitted changes included."""
        cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
        cdef int failed = self.fetch(<uint8_t *> PyBytes_AsString(out), size, offset)
        if failed:
            raise OSError(failed, os.strerror(failed))
        return out

    def write_at(self, int64_t offset, const unsigned char[::1] data not None):
        """Write where no committed record looks yet (tail, checkpoint slot); a failure breaks the file.

        Space that is held, because HDF5 has taken it anew below the committed end, stays held.
        """
        cdef int64_t size = data.shape[0]
        if size and not self.error and not self.dead:
            if self.is_held(offset, size):
                self.error = self.hold(&data[0], size, offset)
            else:
                self.error = self.put(offset, data)
        self.check()

    def reserve(self, int64_t offset, int64_t size):
        """Hold newly allocated space as zeros if it lies below the committed end, where old bytes may still count."""
        cdef bytearray zeros
        size = min(offset + size, self.base) - offset
        if self.live and size > 0:
            zeros = bytearray(size)
            self.error = self.hold(<const uint8_t *> PyByteArray_AsString(zeros), size, offset) or self.error

    def journal(self):
        """Return the held blocks as journal entries (offset u64, size u32, bytes) in file order."""
        cdef list entries = []
        cdef int64_t start
        for number in sorted(self.held):
            start = number * BLOCK
            block = bytes(self.held[number][:min(BLOCK, self.base - start)])
            entries += (start.to_bytes(8, "little"), len(block).to_bytes(4, "little"), block)
        return b"".join(entries)

    def seal(self, bytes journal not None, int64_t journal_offset, bytes record not None, tuple record_offsets,
             bytes mark not None, int64_t mark_offset, bint sync):
        """Commit: write the journal, both copies of the record, apply the held blocks, write the mark.

        Returns 0 once the record is on disk, even if applying failed (the journal will be redone), else errno.
        """
        cdef int failed = 0
        if journal:
            failed = self.put(journal_offset, journal)
        failed = failed or (self.sync() if sync else 0)
        for offset in record_offsets:
            failed = failed or self.put(offset, record)
        failed = failed or (self.sync() if sync else 0)
        if failed:
            self.error = failed
            return failed
        for number, block in self.held.items():
            failed = failed or self.put(number * BLOCK, block[:min(BLOCK, self.base - number * BLOCK)])
        failed = failed or (self.sync() if sync and self.held else 0)
        failed = failed or self.put(mark_offset, mark)
        if failed:
            self.error = failed
        else:
            self.held.clear()
            self.base = self.end
        return 0

    def abandon(self):
        """Swallow every further write; the disk keeps the last commit."""
        self.dead = True

    def release(self):
        """Close the descriptor."""
        cdef int fd = self.fd
        self.dead, self.fd = True, -1
        if fd >= 0:
            os.close(fd)

    # --- below both

    cpdef int put(self, int64_t offset, const unsigned char[::1] data) except? -1:
        """Write bytes to the disk; return 0 or errno. Every byte of a run passes here."""
        cdef int failed
        cdef int64_t size = data.shape[0]
        if size == 0:
            return 0
        with nogil:
            failed = write_all(self.fd, &data[0], size, offset)
        return failed

    cpdef int sync(self) except? -1:
        """Wait until the disk has everything; return 0 or errno."""
        cdef int failed
        with nogil:
            failed = sync_file(self.fd)
        return errno if failed else 0

    cdef int fetch(self, uint8_t *to, int64_t size, int64_t offset) except? -1:
        """Read from the disk and lay the held blocks over it."""
        cdef int failed
        cdef int64_t number, first, last
        cdef bytearray block
        with nogil:
            failed = read_all(self.fd, to, size, offset)
        if self.held and offset < self.base:
            for number in range(offset // BLOCK, (min(offset + size, self.base) - 1) // BLOCK + 1):
                block = self.held.get(number)
                if block is not None:
                    first = max(offset, number * BLOCK)
                    last = min(min(offset + size, (number + 1) * BLOCK), self.base)
                    memcpy(to + (first - offset), PyByteArray_AsString(block) + (first - number * BLOCK), last - first)
        return failed

    cdef bint is_held(self, int64_t offset, int64_t size) except? -1:
        """Tell whether any block of a range is held."""
        cdef int64_t number
        if self.held and offset < self.base:
            for number in range(offset // BLOCK, (min(offset + size, self.base) - 1) // BLOCK + 1):
                if number in self.held:
                    return True
        return False

    cdef int hold(self, const uint8_t *start, int64_t size, int64_t offset) except? -1:
        """Keep an overwrite of committed bytes in memory; offset + size <= base."""
        cdef int64_t number, first, last
        cdef int failed = 0
        cdef bytearray block
        for number in range(offset // BLOCK, (offset + size - 1) // BLOCK + 1):
            block = self.held.get(number)
            first, last = max(offset, number * BLOCK), min(offset + size, (number + 1) * BLOCK)
            if block is None:
                block = bytearray(BLOCK)
                if last - first < BLOCK:
                    failed = read_all(self.fd, <uint8_t *> PyByteArray_AsString(block), BLOCK, number * BLOCK) or failed
                self.held[number] = block
            memcpy(PyByteArray_AsString(block) + (first - number * BLOCK), start + (first - offset), last - first)
        return failed
