import numpy as np
import pytest
import torch

from discernel import RBF, Linear, choose_landmarks, landmarks
from discernel.landmarks import leverage_scores


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def round_numbers(rows, top, columns, dtype):
    return torch.randint(0, top, (rows, columns), generator=seeded(0)).to(dtype)


def letter_like():
    """Return rows of small whole numbers, of which almost all occur many times."""
    return round_numbers(3000, 4, 3, torch.float32)


def sorted_rows(x):
    return torch.from_numpy(np.unique(x.numpy(), axis=0))


@pytest.mark.parametrize("n_components", [1, 10, 60, 64])
@pytest.mark.parametrize("seed", range(3))
def test_uniform_landmarks_are_distinct_rows_of_the_data(n_components, seed):
    x = letter_like()
    chosen = choose_landmarks(x, n_components, generator=seeded(seed))
    assert chosen.shape == (n_components, 3)
    assert chosen.dtype == x.dtype
    assert len(sorted_rows(chosen)) == n_components
    assert (chosen[:, None] == x).all(2).any(1).all()


def test_zero_and_minus_zero_are_the_same_row():
    x = torch.tensor([[0.0], [-0.0], [1.0]])
    with pytest.raises(ValueError, match="only 2 distinct rows"):
        choose_landmarks(x, 3)


def test_as_many_landmarks_as_distinct_rows_are_all_of_them():
    x = letter_like()
    assert torch.equal(sorted_rows(choose_landmarks(x, 64, generator=seeded(1))), sorted_rows(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("top", "columns"), [(2, 14), (16, 16), (256, 5)], ids=["bits", "letter", "bytes"])
def test_rows_of_round_numbers_are_told_apart(top, columns, dtype):
    x = round_numbers(3000, top, columns, dtype)
    expected = sorted_rows(x)
    assert torch.equal(sorted_rows(choose_landmarks(x, len(expected), generator=seeded(1))), expected)


@pytest.mark.parametrize("init", landmarks.INITS)
def test_a_weight_of_three_is_a_row_that_is_there_thrice(init):
    x = torch.randn(40, 2, generator=seeded(0))
    counts = torch.arange(40) % 4
    order = torch.randperm(int(counts.sum()), generator=seeded(0))
    first = choose_landmarks(x, 7, init, seeded(1), counts.float(), RBF(0.5))
    second = choose_landmarks(x.repeat_interleave(counts, 0)[order], 7, init, seeded(1), kernel=RBF(0.5))
    torch.testing.assert_close(first, second)


def test_rows_without_weight_are_never_chosen():
    x = torch.arange(10.0)[:, None]
    weight = (x[:, 0] < 4).float()
    assert sorted_rows(choose_landmarks(x, 4, sample_weight=weight)).flatten().tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="only 4 distinct rows"):
        choose_landmarks(x, 5, sample_weight=weight)


def test_every_distinct_row_can_be_chosen():
    x = torch.cat([torch.zeros(50, 1), torch.arange(1.0, 6.0)[:, None]])
    seen = torch.cat([choose_landmarks(x, 2, generator=seeded(seed)) for seed in range(100)])
    assert torch.equal(sorted_rows(seen), sorted_rows(x))


def test_distinct_rows_are_equally_likely():
    x = torch.arange(10.0)[:, None]
    seen = torch.cat([choose_landmarks(x, 3, generator=seeded(seed)) for seed in range(500)])
    counts = torch.bincount(seen.long().flatten(), minlength=10)
    assert counts.min() > 100  # 150 expected, standard deviation 10
    assert counts.max() < 200


@pytest.mark.parametrize("init", landmarks.INITS)
def test_the_seed_decides_the_landmarks_and_nothing_else_does(init):
    x = torch.randn(400, 3, generator=seeded(0))
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, same, other = (choose_landmarks(x, 8, init, seeded(seed), kernel=RBF(0.5)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kmeans_landmarks_are_near_the_clusters(dtype):
    centres = 10 * torch.eye(4, dtype=dtype)
    x = centres.repeat(50, 1) + 0.1 * torch.randn(200, 4, generator=seeded(0), dtype=dtype)
    chosen = choose_landmarks(x, 4, "kmeans", seeded(0))
    assert chosen.dtype == dtype
    assert (torch.cdist(centres, chosen).min(1).values < 0.1).all()


def test_kmeans_may_make_more_landmarks_than_its_sample_has_rows(monkeypatch):
    monkeypatch.setattr(landmarks, "SAMPLES", 10)
    chosen = choose_landmarks(torch.randn(40, 2, generator=seeded(0)), 12, "kmeans", seeded(0))
    assert len(sorted_rows(chosen)) == 12


@pytest.mark.parametrize("init", landmarks.INITS)
def test_more_landmarks_than_rows_or_distinct_rows_are_refused(init):
    x = torch.tensor([[0.0], [0.0], [1.0]])
    with pytest.raises(ValueError, match="n_components must be at most the number of samples, 3; got 4"):
        choose_landmarks(x, 4, init)
    with pytest.raises(ValueError, match="n_components is 3, but the data have only 2 distinct rows"):
        choose_landmarks(x, 3, init)


# Leverage.


def exact_leverage(x, kernel, rank):
    """Return the diagonal of K(K + λI)⁻¹, where λ is the sum of all but the largest eigenvalues divided by the rank."""
    k = kernel(x, x)
    penalty = torch.linalg.eigvalsh(k)[:-rank].sum() / rank
    return torch.linalg.solve(k + penalty * torch.eye(len(k)), k).diagonal()


def test_leverage_scores_of_few_rows_are_those_of_the_kernel_matrix():
    x, kernel = torch.randn(12, 2, generator=seeded(0), dtype=torch.float64), RBF(0.5)
    torch.testing.assert_close(leverage_scores(x, kernel, 6), exact_leverage(x, kernel, 6))


def test_leverage_scores_of_many_rows_are_near_those_of_the_kernel_matrix():
    x, kernel = torch.randn(600, 2, generator=seeded(0), dtype=torch.float64), RBF(0.1)
    found, exact = leverage_scores(x, kernel, 15), exact_leverage(x, kernel, 15)
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.corrcoef(found, exact)[0, 1] > 0.9


def test_the_leverage_of_a_weight_is_that_of_its_rows_together():
    x = torch.randn(8, 2, generator=seeded(0), dtype=torch.float64)
    counts = torch.tensor([1.0, 3, 1, 1, 2, 1, 1, 1]).double()
    order = torch.tensor([*range(8), 1, 1, 4])
    together = torch.zeros(8, dtype=torch.float64).index_add(0, order, leverage_scores(x[order], RBF(0.5), 4))
    torch.testing.assert_close(leverage_scores(x, RBF(0.5), 4, counts), together)


def test_leverage_finds_the_few_rows_that_uniform_sampling_misses():
    crowd, few = 0.1 * torch.randn(300, 2, generator=seeded(0)), torch.tensor([[9.0, 0.0], [0.0, 9.0], [-9.0, 0.0]])
    x = torch.cat([crowd, few])

    def found(init):
        draws = (choose_landmarks(x, 20, init, seeded(seed), kernel=RBF(1.0)) for seed in range(20))
        return sum((draw[:, None] == few).all(2).any().item() for draw in draws)

    assert found("leverage") >= 18
    assert found("uniform") <= 10  # one of 3 in 20 of 303: 18% of the draws


def test_a_kernel_that_is_zero_gives_no_row_leverage():
    assert not leverage_scores(torch.zeros(3, 2), Linear(), rank=2).any()


def test_leverage_wants_a_kernel():
    with pytest.raises(ValueError, match='init="leverage" needs the kernel'):
        choose_landmarks(torch.randn(9, 2, generator=seeded(0)), 3, "leverage")
