from itertools import chain

import numpy as np
import pytest
import torch
from scipy import sparse

from discernel import ArraySource, Targets
from discernel.data import SparseSource


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
