from contextlib import ExitStack

import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from discernel.resources import CHUNK, alone, by_one_thread, chunk_rows, empty, kept, one_thread, threads_for

# Memory


def test_memory_is_used_again_when_no_tensor_has_a_part_in_it():
    memory, like = {}, torch.zeros(0)
    with kept(memory):
        first = empty((600, 500), like)
        part = first.T[3:, ::7]
        second = empty((600, 500), like)
        assert first.shape == second.shape == (600, 500)
        assert first.dtype == torch.float32
        place, other = first.data_ptr(), second.data_ptr()
        assert place != other
        assert place % 64 == other % 64 == 0
        del first
        assert empty((600, 500), like).data_ptr() not in (place, other)  # a part of it is still in use
        del part
        assert empty((600, 500), like).data_ptr() == place
        assert empty((550, 500), like).data_ptr() not in (place, other)
        assert empty((300, 500), like, torch.float64).data_ptr() == place
    assert sorted(len(blocks) for blocks in memory.values()) == [1, 3]


def test_memory_that_autograd_has_saved_is_in_use():
    factor = torch.ones((), requires_grad=True)
    with kept({}):
        a = empty((600, 500), factor).fill_(2.0)
        total, place = (a * factor).sum(), a.data_ptr()
        del a
        assert empty((600, 500), factor).fill_(torch.nan).data_ptr() != place
        total.backward()
    assert factor.grad.item() == 600 * 500 * 2.0


def test_memory_is_not_kept_elsewhere():
    like = torch.zeros(0)
    memory = {}
    with kept(memory):
        assert empty((3, 2), like).shape == (3, 2)  # too small
    assert empty((600, 500), like).shape == (600, 500)
    assert memory == {}


# How much at a time


def test_rows_are_worked_on_in_chunks_of_bounded_size():
    widths = [0, 1, 3, 100, 1000, 10**6]
    rows = [chunk_rows(width) for width in widths]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] == CHUNK
    assert chunk_rows(0) == chunk_rows(1)
    assert all(count == CHUNK or width * count <= chunk_rows(1) for width, count in zip(widths, rows, strict=True))
    assert [chunk_rows(10**6, depth) for depth in (1, CHUNK + 1, 10**6)] == [CHUNK, CHUNK + 1, 1024]


@pytest.mark.parametrize(("work", "threads"), [(0, 1), (1e6, 1), (1e8, 2), (1e12, 2)])
def test_little_work_is_for_one_thread(work, threads, two_threads):
    with threads_for(work):
        assert torch.get_num_threads() == threads
        assert alone() == (threads == 1)
    assert torch.get_num_threads() == 2
    assert not alone()


def test_so_it_is_for_one_of_scipy(two_threads):
    def count():
        return [library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers]

    with threadpool_limits(2, user_api="blas"):
        with threads_for(1):
            assert set(count()) == {1}
        assert set(count()) == {2}


def test_of_two_that_ask_for_one_thread_at_once_the_first_puts_them_back(two_threads, monkeypatch):
    """Though the other looked before they were set: what it would put back is a 1."""
    blas = ThreadpoolController().select(user_api="blas")
    with threadpool_limits(2, user_api="blas"), ExitStack() as stack:
        first, second = one_thread(), one_thread()
        first.__enter__()
        with monkeypatch.context() as patched:
            patched.setattr("discernel.resources._have_one_thread", lambda: False)
            stack.enter_context(second)
        first.__exit__(None, None, None)
        assert by_one_thread(lambda: {library.num_threads for library in blas.lib_controllers}) == {1}
        stack.close()
        assert {library.num_threads for library in blas.lib_controllers} == {2}


def test_the_threads_are_put_back_after_an_error(two_threads):
    with pytest.raises(KeyError), threads_for(1):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_one_thread_is_left_alone(two_threads):
    torch.set_num_threads(1)
    with threads_for(1):
        torch.set_num_threads(2)  # as another Python thread does that ends its work meanwhile
    assert torch.get_num_threads() == 2
