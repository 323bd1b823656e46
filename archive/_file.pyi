"""The two file objects that HDF5 reads and writes a run through."""

from typing import final

from typing_extensions import Buffer, disjoint_base

def superblock_check(data: Buffer) -> int:
    """Return the checksum that HDF5 keeps behind the first 44 bytes of a superblock."""

@final
class ReadView:
    """A read-only file for HDF5: pages in memory, with the newest journal laid over them."""

    def __init__(self, fd: int) -> None: ...
    @property
    def end(self) -> int:
        """End of the file as its record says."""

    @property
    def error(self) -> int:
        """errno of the first failure since `load`, 0 without one."""

    @property
    def fresh(self) -> int:
        """How many pages were read from the disk since `load`."""

    def load(self, end: int, journal: bytes) -> None:
        """Read every page known so far again and lay `journal` over them; the file ends at byte `end`."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset` as the newest commit has them, zeros past the end of the file."""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to `offset`, or to the end."""

    def tell(self) -> int:
        """Return the position."""

    def readinto(self, out: Buffer) -> int:
        """Fill `out`, zeros past the end of the file."""

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes."""

    def write(self, data: Buffer) -> int:
        """Record an error: a reader never writes."""

    def truncate(self, size: int | None = None) -> int | None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

@disjoint_base
class JournaledFile:
    """The writer's file: appends go through, overwrites of committed bytes wait for `seal`."""

    def __init__(self, fd: int) -> None: ...
    @property
    def fd(self) -> int:
        """The descriptor, -1 once released."""

    @property
    def base(self) -> int:
        """Committed end: below it overwrites are held."""

    @property
    def end(self) -> int:
        """End of file as HDF5 declared it last."""

    @property
    def size(self) -> int:
        """One past the last byte ever written."""

    @property
    def last_offset(self) -> int:
        """Where HDF5's last write began."""

    @property
    def last_size(self) -> int:
        """How many bytes HDF5's last write had."""

    @property
    def error(self) -> int:
        """errno of the first failed read or write, 0 without one."""

    @property
    def live(self) -> bool:
        """Whether there is a commit to protect."""

    @property
    def dead(self) -> bool:
        """Whether further writes are swallowed."""

    @property
    def held_blocks(self) -> int:
        """Number of committed blocks whose new content waits for `seal`."""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to `offset`, or to the end."""

    def tell(self) -> int:
        """Return the position."""

    def readinto(self, out: Buffer) -> int:
        """Fill `out`, held blocks included, zeros past the end of the file."""

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes."""

    def write(self, data: Buffer) -> int:
        """Write behind the committed end, hold what lies before it; a failure is recorded, never raised."""

    def truncate(self, size: int | None = None) -> int | None:
        """Note the end of file that HDF5 declares."""

    def flush(self) -> None:
        """Do nothing: commits decide what reaches the disk when."""

    def begin(self, base: int) -> None:
        """Take bytes below `base` as committed: from now on overwriting them waits for `seal`."""

    def check(self) -> None:
        """Raise OSError if a read or write failed since the file was opened."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset` as HDF5 would see them: uncommitted changes included."""

    def write_at(self, offset: int, data: Buffer) -> None:
        """Write where no committed record looks yet (tail, checkpoint slot); a failure breaks the file."""

    def reserve(self, offset: int, size: int) -> None:
        """Hold newly allocated space as zeros if it lies below the committed end, where old bytes may still count."""

    def journal(self) -> bytes:
        """Return the held blocks as journal entries (offset u64, size u32, bytes) in file order."""

    def seal(
        self,
        journal: bytes,
        journal_offset: int,
        record: bytes,
        record_offsets: tuple[int, ...],
        mark: bytes,
        mark_offset: int,
        sync: bool,
    ) -> int:
        """Commit: write the journal, both copies of the record, apply the held blocks, write the mark."""

    def abandon(self) -> None:
        """Swallow every further write; the disk keeps the last commit."""

    def release(self) -> None:
        """Close the descriptor."""

    def put(self, offset: int, data: Buffer) -> int:
        """Write bytes to the disk; return 0 or errno. Every byte of a run passes here."""

    def sync(self) -> int:
        """Wait until the disk has everything; return 0 or errno."""
