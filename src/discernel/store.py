"""A matrix that may be larger than memory: rows written once to a temporary file, then read at any index."""

import errno
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable

import numpy as np

IN_MEMORY = 2**26  # numbers up to which a matrix is kept in memory, 256 MiB
PAGE = 2**20  # bytes that are read at once
GAP = 2**16  # bytes between two rows above which they are read one after the other


class MatrixFile:
    """Rows of float32 numbers in a temporary file, which goes when this object or the process does.

    Parameters
    ----------
    n_columns : int
        The numbers of a row.
    folder : path, optional
        Where the file is; by default the system's folder for temporary files.

    Examples
    --------
    >>> matrix = MatrixFile(n_columns=2)
    >>> matrix.append(np.arange(6).reshape(3, 2))
    >>> matrix[np.array([2, 0])]
    array([[4., 5.],
           [0., 1.]], dtype=float32)
    """

    def __init__(self, n_columns: int, folder: str | os.PathLike | None = None):
        self.n_columns, self.n_rows = n_columns, 0
        self.folder = tempfile.gettempdir() if folder is None else os.fspath(folder)
        self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (open as long as this object lives)
        self._lock = threading.Lock()  # a file has one position, but rows are asked for by several threads
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self.n_rows

    def append(self, rows: np.ndarray) -> None:
        """Write rows behind those that are there."""
        try:
            self._file.write(np.ascontiguousarray(rows, np.float32).data)
            self._file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size = self.n_rows * self.n_columns * 4 / 1e9
            message = f"{self.folder} is full after {size:.1f} GB: give `cache` a folder on a larger disk"
            raise OSError(errno.ENOSPC, message) from error
        self.n_rows += len(rows)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        """Return the rows at `index`, a slice forwards or an array of row numbers in any order, in memory."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.n_rows)
            return self._read(start, stop)[::step]
        out = np.empty((len(index), self.n_columns), np.float32)
        if not len(index):
            return out
        order = np.argsort(index, kind="stable")
        ranked = index[order]
        if ranked[0] < 0 or ranked[-1] >= self.n_rows:
            raise IndexError(f"row numbers must be from 0 to {self.n_rows - 1}, got {ranked[0]} to {ranked[-1]}")
        width = 4 * self.n_columns
        apart = (np.diff(ranked) > GAP // width) | (np.diff(ranked // max(1, PAGE // width)) > 0)
        for part in np.split(order, np.flatnonzero(apart) + 1):
            rows = index[part]
            out[part] = self._read(rows[0], rows[-1] + 1)[rows - rows[0]]
        return out

    def _read(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((max(0, stop - start), self.n_columns), np.float32)
        with self._lock:
            self._file.seek(int(start) * self.n_columns * 4)
            count = self._file.readinto(rows.data)
        if count != rows.nbytes:
            raise OSError(f"the temporary file in {self.folder} has been cut short")
        return rows


def keep(blocks: Iterable[np.ndarray], folder=None, limit: float = IN_MEMORY) -> np.ndarray | MatrixFile:
    """Return blocks of rows as one matrix: in memory up to `limit` numbers, in a file above."""
    held: deque[np.ndarray] = deque()
    count, matrix = 0, None
    for block in blocks:
        held.append(block)
        count += block.size
        if count > limit:
            matrix = matrix or MatrixFile(block.shape[1], folder)
            while held:
                matrix.append(held.popleft())
    return _joined(held) if matrix is None else matrix


def _joined(held: deque[np.ndarray]) -> np.ndarray:
    """Concatenate, and let go of each block once it is copied, so that memory need not hold all rows twice."""
    out = np.empty((sum(map(len, held)), held[0].shape[1]), np.float32)
    start = 0
    while held:
        block = held.popleft()
        out[start : start + len(block)] = block
        start += len(block)
    return out
