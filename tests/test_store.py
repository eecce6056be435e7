import errno
import gc
import threading

import numpy as np
import pytest

from discernel import store
from discernel.store import MatrixFile, keep

ROWS = np.arange(300, dtype=np.float32).reshape(100, 3)


def filled(rows=ROWS):
    matrix = MatrixFile(rows.shape[1])
    for start in range(0, len(rows), 7):
        matrix.append(rows[start : start + 7])
    return matrix


@pytest.mark.parametrize("gap", [0, 40, 10**6])
@pytest.mark.parametrize("page", [1, 12, 100, 10**6])
def test_rows_are_read_as_from_an_array(monkeypatch, gap, page):
    monkeypatch.setattr(store, "GAP", gap)
    monkeypatch.setattr(store, "PAGE", page)
    matrix, rng = filled(), np.random.default_rng(0)
    assert len(matrix) == 100
    for index in (
        slice(None),
        slice(3, 50),
        slice(90, 200),
        slice(3, 50, 4),
        slice(100, 120),
        np.array([], int),
        np.array([99]),
        np.array([5, 5, 0, 99, 5]),
        rng.permutation(100),
        rng.integers(100, size=30),
    ):
        np.testing.assert_array_equal(matrix[index], ROWS[index])


@pytest.mark.parametrize("index", [[-1], [0, 100]])
def test_rows_that_are_not_there_are_refused(index):
    with pytest.raises(IndexError, match="from 0 to 99"):
        filled()[np.array(index)]


def test_many_threads_read_at_once():
    matrix, wrong = filled(), []

    def read(seed):
        for _ in range(200):
            index = np.random.default_rng(seed).integers(100, size=10)
            if not np.array_equal(matrix[index], ROWS[index]):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_matrix_is_in_memory_up_to_the_limit(tmp_path):
    blocks = list(np.split(ROWS, 5))
    inside, outside = keep(blocks, limit=300), keep(blocks, tmp_path, limit=299)
    assert isinstance(inside, np.ndarray)
    assert isinstance(outside, MatrixFile)
    np.testing.assert_array_equal(inside, ROWS)
    np.testing.assert_array_equal(outside[:], ROWS)


def test_the_file_goes_with_the_matrix(tmp_path):
    matrix = MatrixFile(3, tmp_path)
    matrix.append(ROWS)
    file = matrix._file
    assert not file.closed
    del matrix
    gc.collect()
    assert file.closed
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_what_to_do(monkeypatch, tmp_path):
    matrix = MatrixFile(3, tmp_path)

    class Full:
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(matrix, "_file", Full())
    with pytest.raises(OSError, match=r"is full after 0.0 GB: give `cache`"):
        matrix.append(ROWS)
    assert len(matrix) == 0


def test_a_file_that_was_cut_short_is_noticed():
    matrix = filled()
    matrix._file.truncate(100)
    with pytest.raises(OSError, match="cut short"):
        matrix[:]
