import threading
import weakref
from itertools import chain

import numpy as np
import pytest
import torch
from scipy import sparse

from discernel import ArraySource, Targets, data
from discernel.data import Shard, SparseSource, View, shuffled


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def source(rows=23, weighted=False, dtype=torch.float64):
    """Return data whose rows, targets and weights all hold the row number."""
    number = torch.arange(rows, dtype=dtype)
    return ArraySource(number[:, None], Targets.values(number.numpy()), number + 1 if weighted else None)


def numbers(batches):
    return [batch.x.flatten().int().tolist() for batch in batches]


def flat(lists):
    return list(chain.from_iterable(lists))


@pytest.mark.parametrize("size", [1, 5, 23])
def test_batches_with_a_generator_are_whole_and_leave_out_the_tail(size):
    drawn = numbers(source().batches(size, seeded()))
    assert [len(batch) for batch in drawn] == [size] * (23 // size)
    seen = flat(drawn)
    assert len(set(seen)) == len(seen) == 23 // size * size


def test_the_seed_decides_the_batches():
    first, same, other = (numbers(source().batches(5, seeded(seed))) for seed in (1, 1, 2))
    assert first == same != other
    assert flat(first) != sorted(flat(first))


def test_the_next_epoch_is_drawn_anew():
    generator = seeded()
    assert numbers(source().batches(5, generator)) != numbers(source().batches(5, generator))


@pytest.mark.parametrize("skip", range(5))
def test_skipping_gives_the_same_later_batches_and_generator(skip):
    whole, part = seeded(), seeded()
    later = numbers(source().batches(5, whole))[skip:]
    assert numbers(source().batches(5, part, skip=skip)) == later
    assert torch.equal(whole.get_state(), part.get_state()) or skip == 4


@pytest.mark.parametrize("size", [1, 5, 23, 100])
def test_without_a_generator_all_rows_come_in_order(size):
    drawn = numbers(source().batches(size))
    assert flat(drawn) == list(range(23))
    assert all(len(batch) == size for batch in drawn[:-1])


@pytest.mark.parametrize("generator", [None, seeded()], ids=["in order", "drawn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_targets_and_weights_stay_together(generator, weighted):
    for batch in source(weighted=weighted).batches(5, generator):
        assert torch.equal(batch.x, batch.targets)
        assert torch.equal(batch.x[:, 0] + 1, batch.sample_weight) if weighted else batch.sample_weight is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_data_decide_the_precision_of_targets_and_weights(dtype):
    x = torch.zeros(3, 1, dtype=dtype)
    for targets in (Targets.classes([0, 1, 1], "unit"), Targets.values(np.zeros(3)), Targets.labels(np.eye(3))):
        batch = ArraySource(x, targets, torch.ones(3)).rows(slice(None))
        assert {part.dtype for part in batch} == {dtype}


def test_samples_may_have_any_shape():
    images = torch.zeros(6, 2, 4, 4)
    assert [batch.x.shape for batch in ArraySource(images, Targets.values(np.zeros(6))).batches(4)] == [
        (4, 2, 4, 4),
        (2, 2, 4, 4),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("generator", [None, 0], ids=["in order", "drawn"])
def test_sparse_data_give_the_batches_of_dense_data(generator, dtype):
    x = np.where(np.random.default_rng(0).random((23, 5)) < 0.3, 1.5, 0).astype(dtype)
    targets, weight = Targets.classes(np.arange(23) % 3), torch.arange(23.0)
    dense = ArraySource(torch.from_numpy(x), targets, weight)
    thin = SparseSource(sparse.csr_array(x), targets, weight)
    pairs = zip(*(s.batches(5, None if generator is None else seeded()) for s in (dense, thin)), strict=True)
    for expected, batch in pairs:
        torch.testing.assert_close(tuple(batch), tuple(expected), rtol=0, atol=0)
    assert len(thin) == 23
    assert thin.fingerprint() == dense.fingerprint()


@pytest.mark.parametrize("rows", [1, 2, 63, 64])
def test_the_fingerprint_sees_every_row_of_small_data(rows):
    seen = {source(rows).fingerprint(), source(rows, weighted=True).fingerprint()}
    for row in range(rows):
        x = torch.arange(rows, dtype=torch.float64)[:, None]
        x[row] += 0.5
        seen.add(ArraySource(x, source(rows).targets).fingerprint())
    assert len(seen) == rows + 2
    assert source(rows).fingerprint() == source(rows).fingerprint()


def test_the_fingerprint_of_more_rows_than_float32_counts():
    rows = 2**24 + 4
    x = torch.zeros(1, 1).expand(rows, 1)
    assert ArraySource(x, Targets("values", x, 1)).fingerprint() is not None


@pytest.fixture
def small_loads(monkeypatch):
    """Loads of 24 numbers in blocks of 3, so that 50 rows of one number are more than two loads."""
    for name, value in {"LOAD": 24, "BLOCKS": 8, "MIN_ROWS": 1}.items():
        monkeypatch.setattr(data, name, value)


class Streamed(ArraySource):
    """An array that is read as a file is, and tells which rows were read, and how many loads were there at once."""

    def __init__(self, x, targets, sample_weight=None):
        super().__init__(x, targets, sample_weight)
        self.streams, self.reads, self.loads, self.most = True, [], [], 0
        self.another = threading.Condition()

    def _stored(self, index):
        assert threading.current_thread() is not threading.main_thread()
        stored = super()._stored(index)
        with self.another:
            self.reads.append(np.arange(len(self))[index])
            self.loads.append(weakref.ref(stored))
            self.most = max(self.most, self.alive())
            self.another.notify_all()
        return stored

    def has_read(self, loads):
        with self.another:
            return self.another.wait_for(lambda: len(self.reads) >= loads, timeout=60)

    def alive(self):
        return sum(load() is not None for load in self.loads)


def streamed(rows=50, weighted=False):
    there = source(rows, weighted)
    return Streamed(there.x, there.targets, there.sample_weight)


def test_data_that_two_loads_hold_come_in_a_plain_permutation(small_loads):
    assert [part.tolist() for part in shuffled(48, 1, seeded())] == [torch.randperm(48, generator=seeded()).tolist()]
    assert len(list(shuffled(49, 1, seeded()))) == 3


@pytest.mark.parametrize("rows", [49, 50, 240, 241])
@pytest.mark.parametrize("width", [1, 2, 24, 1000])
def test_a_load_has_the_rows_of_a_few_whole_blocks(small_loads, rows, width):
    loads = [part.tolist() for part in shuffled(rows, width, seeded())]
    assert sorted(flat(loads)) == list(range(rows))
    assert flat(loads) != sorted(flat(loads))
    block = max(1, max(1, 24 // width) // 8)
    for load in loads:
        blocks = {row // block for row in load}
        assert len(blocks) <= 8
        assert (
            sorted(load)
            == [row for each in sorted(blocks) for row in range(each * block, (each + 1) * block)][: len(load)]
        )


@pytest.mark.parametrize("rows", [240, 250, 1000])
def test_a_load_has_a_block_of_every_part_of_the_data(small_loads, rows):
    *loads, _ = (part.tolist() for part in shuffled(rows, 1, seeded()))
    n_blocks = -(-rows // 3)
    for load in loads:
        assert sorted({row // 3 * 8 // n_blocks for row in load}) == list(range(8))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_processes_have_as_much_to_do_in_every_load(small_loads, ranks):
    shards = [Shard(source(240), rank, ranks, lambda tensor: tensor) for rank in range(ranks)]
    for parts in zip(*(shard.batches(24, seeded()) for shard in shards), strict=True):
        assert [len(part.x) for part in parts] == [24 // ranks] * ranks


def test_within_a_load_the_rows_are_permuted_across_its_blocks(small_loads):
    load = next(iter(shuffled(240, 1, seeded()))).tolist()
    assert len({row // 3 for row in load[:8]}) > 3


@pytest.mark.parametrize("make", [source, streamed], ids=["array", "streamed"])
@pytest.mark.parametrize("size", [1, 5, 24, 25, 49])
@pytest.mark.parametrize("skip", [0, 1, 7, 50])
def test_large_data_resume_exactly_within_an_epoch(small_loads, make, size, skip):
    whole, part = seeded(), seeded()
    every = numbers(source(50).batches(size, whole))
    assert [len(batch) for batch in every] == [size] * (50 // size)
    assert len(set(flat(every))) == 50 // size * size
    assert numbers(make(50).batches(size, part, skip=skip)) == every[skip:]
    assert torch.equal(whole.get_state(), part.get_state())


def test_a_resumed_stream_reads_nothing_of_what_it_skips(small_loads):
    stream = streamed(240)
    drawn = numbers(stream.batches(24, seeded(), skip=9))
    assert sorted(np.concatenate(stream.reads)) == sorted(flat(drawn))


@pytest.mark.parametrize("generator", [None, 0], ids=["in order", "drawn"])
@pytest.mark.parametrize("size", [1, 5, 24, 25, 49, 60])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_stream_gives_the_batches_of_an_array(small_loads, generator, size, weighted):
    both = source(50, weighted), streamed(50, weighted)
    pairs = zip(*(s.batches(size, None if generator is None else seeded()) for s in both), strict=True)
    for expected, batch in pairs:
        torch.testing.assert_close(tuple(batch), tuple(expected), rtol=0, atol=0)


@pytest.mark.parametrize("generator", [None, 0], ids=["in order", "drawn"])
def test_a_stream_holds_two_loads_at_most(small_loads, generator):
    stream = streamed(500)
    for number, _batch in enumerate(stream.batches(6, None if generator is None else seeded())):
        assert stream.has_read(min(number // 4 + 2, 21))  # the next load comes while this one is in use
    assert [len(rows) for rows in stream.reads[:-1]] == [24] * 20
    assert stream.most == 2
    assert stream.alive() == 0


def test_a_stream_reads_while_its_batches_are_used(small_loads):
    stream = streamed(500)
    next(batches := stream.batches(24))
    assert stream.has_read(2)  # the second load comes though only the first has been asked for
    batches.close()


def test_a_stream_that_is_left_early_leaves_no_thread(small_loads):
    before = threading.active_count()
    for leave in (lambda batches: batches.close(), lambda batches: None):
        batches = streamed(500).batches(6, seeded())
        next(batches)
        assert threading.active_count() == before + 1
        leave(batches)
        del batches
        assert threading.active_count() == before


def test_what_goes_wrong_in_the_thread_is_raised(small_loads):
    stream = streamed(500)
    stream._stored = lambda index: 1 / 0
    with pytest.raises(ZeroDivisionError):
        next(stream.batches(6))


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_memory_mapped_file_gives_the_batches_of_the_array(small_loads, tmp_path, mode, dtype):
    x = np.random.default_rng(0).random((50, 2)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    targets = Targets.classes(np.arange(50) % 3)
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode=mode), targets)
    assert mapped.streams
    assert not ArraySource(x, targets).streams
    for generator in (None, 0):
        drawn = (s.batches(7, None if generator is None else seeded()) for s in (ArraySource(x, targets), mapped))
        for expected, batch in zip(*drawn, strict=True):
            torch.testing.assert_close(tuple(batch), tuple(expected), rtol=0, atol=0)
    assert mapped.fingerprint() == ArraySource(torch.from_numpy(x), targets).fingerprint()


@pytest.mark.parametrize("make", [source, streamed], ids=["array", "streamed"])
@pytest.mark.parametrize("generator", [None, 0], ids=["in order", "drawn"])
def test_a_view_is_a_source_of_some_rows(small_loads, make, generator):
    index = torch.randperm(240, generator=seeded())[:200]
    whole, plain = make(240, weighted=True), source(240, weighted=True)
    view = View(whole, index)
    expected = ArraySource(plain.x[index], Targets.values(plain.x[index].numpy()), plain.sample_weight[index])
    pairs = zip(*(s.batches(7, None if generator is None else seeded()) for s in (view, expected)), strict=True)
    for batch, other in pairs:
        torch.testing.assert_close(tuple(batch), tuple(other), rtol=0, atol=0)
    assert view.fingerprint() == expected.fingerprint()
    assert view.streams == whole.streams


def test_a_view_may_have_other_targets_and_weights():
    whole = source(weighted=True)
    targets, weight = Targets.classes(np.arange(23) % 2), torch.full((23,), 2.0)
    batch = View(whole, targets=targets, sample_weight=weight).rows(slice(3, 9))
    assert torch.equal(batch.x, whole.x[3:9])
    assert torch.equal(batch.targets, targets[3:9].double())
    assert torch.equal(batch.sample_weight, weight[3:9].double())
    assert torch.equal(View(whole).rows(slice(3, 9)).sample_weight, whole.sample_weight[3:9])
    view = View(View(whole, torch.tensor([5, 1, 3])), torch.tensor([2, 0]))
    assert view.rows(slice(None)).targets.flatten().tolist() == [3, 5]
    with pytest.raises(ValueError, match="targets must have 3 rows"):
        View(whole, torch.tensor([5, 1, 3]), targets=targets)
