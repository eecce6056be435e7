import json
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from typer.testing import CliRunner

from discernel import RBF, Trainer, discriminant_information, two_sample, two_sample_test
from discernel.cli import app
from discernel.two_sample import _indicators, _test, start_gamma

SHORT = Trainer(max_epochs=5)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


X, Y = normal(30, 3), normal(20, 3, seed=1) + np.array([0.3, 0.0, 0.0])


def everything(found):
    """Return the features of all rows, the indicator of the first sample and the absolute penalty."""
    phi = found.feature_map(torch.from_numpy(np.vstack([X, Y])))
    indicator = torch.cat([torch.ones(30, 1), torch.zeros(20, 1)]).double()
    return phi, indicator, 1e-3 * 50


def test_the_statistic_is_a_function_of_the_discriminant_information():
    found = two_sample_test(X, Y, learn=False, n_components=8)
    phi, indicator, rho = everything(found)
    share = discriminant_information(phi, indicator, rho).item() / (30 * 20 / 50)
    assert found.statistic == pytest.approx(50 * share / (1 - share))


def test_the_statistic_is_the_kernel_fisher_discriminant_ratio():
    found = two_sample_test(X, Y, learn=False, n_components=8)
    phi, _, rho = everything(found)
    within = 29 * phi[:30].T.cov() + 19 * phi[30:].T.cov()
    gap = phi[:30].mean(0) - phi[30:].mean(0)
    ratio = gap @ torch.linalg.solve(within / 50 + rho / 50 * torch.eye(8), gap) * 30 * 20 / 50
    assert found.statistic == pytest.approx(ratio.item())


def test_with_all_rows_as_landmarks_the_mmd_is_that_of_the_kernel():
    found = two_sample_test(X, Y, RBF(0.3), learn=False, n_components=50)
    k = {
        (a, b): RBF(0.3).double()(torch.from_numpy(u), torch.from_numpy(v)).mean().item()
        for a, u in (("x", X), ("y", Y))
        for b, v in (("x", X), ("y", Y))
    }
    assert found.mmd == pytest.approx(k["x", "x"] + k["y", "y"] - 2 * k["x", "y"])


def test_all_permutations_in_one_product_are_those_of_a_loop():
    found = two_sample_test(X, Y, learn=False, n_components=8, n_permutations=40)
    phi, _, rho = everything(found)
    generator = torch.Generator().manual_seed(7)
    again = _test(found.feature_map, torch.from_numpy(X), torch.from_numpy(Y), 1e-3, 40, generator)
    columns = torch.cat(list(_indicators(30, 20, 40, torch.Generator().manual_seed(7))), 1).T
    information = torch.stack([discriminant_information(phi, column[:, None], rho) for column in columns])
    assert again.p_value == pytest.approx((information >= information[0]).double().mean().item())
    gaps = [phi[column > 0].mean(0) - phi[column < 0].mean(0) for column in columns]
    mmds = torch.stack([gap @ gap for gap in gaps])
    assert again.mmd == pytest.approx(mmds[0].item())
    assert again.mmd_p_value == pytest.approx((mmds >= mmds[0]).double().mean().item())


def test_permutations_of_many_rows_are_taken_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(two_sample, "ENTRIES", 300)
    parts = list(_indicators(30, 20, 40, torch.Generator().manual_seed(7)))
    assert [part.shape for part in parts] == [(50, 7), *[(50, 6)] * 5, (50, 4)]
    columns = torch.cat(parts, 1)
    assert (columns[:30, 0] > 0).all()
    assert ((columns > 0).sum(0) == 30).all()
    assert len(columns.unique(dim=1).T) == 41
    assert two_sample_test(X, Y + 9, learn=False, n_permutations=40).p_value == pytest.approx(1 / 41)
    monkeypatch.setattr(two_sample, "ENTRIES", 1)
    assert two_sample_test(X, Y + 9, learn=False, n_permutations=40).p_value == pytest.approx(1 / 41)


def test_the_penalty_leads_from_the_fisher_ratio_to_the_mmd():
    found = two_sample_test(X, Y, learn=False, n_components=8, rho=1e6)
    assert found.p_value == found.mmd_p_value


def test_the_order_of_the_samples_does_not_matter():
    there, back = (two_sample_test(*pair, RBF(0.3), learn=False) for pair in ((X, Y), (Y, X)))
    assert there.statistic == pytest.approx(back.statistic)
    assert there.mmd == pytest.approx(back.mmd)


def test_the_seed_decides_everything():
    first, same, other = (two_sample_test(X, Y, trainer=SHORT, seed=seed) for seed in (1, 1, 2))
    assert first.statistic == same.statistic
    assert first.p_value == same.p_value
    assert first.statistic != other.statistic


def test_learning_takes_half_of_the_rows_and_leaves_the_given_kernel_alone():
    kernel = RBF([0.3, 0.3, 0.3], trainable=True)
    found = two_sample_test(normal(200, 3), 2 * normal(100, 3, seed=1), kernel, trainer=SHORT)
    assert found.counts == (100, 50)
    assert not torch.equal(found.feature_map.kernel.gamma, kernel.gamma.double())
    assert kernel.gamma.tolist() == pytest.approx([0.3] * 3)
    assert two_sample_test(X, Y, learn=False).counts == (30, 20)


def test_what_does_not_help_on_held_out_rows_is_not_kept():
    wild = Trainer(max_epochs=3, learning_rate=1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = two_sample_test(X, Y, "rbf", trainer=wild)
    assert found.feature_map.kernel.gamma.unique().numel() == 1
    rows = torch.from_numpy(np.vstack([X, Y]))
    assert torch.cdist(found.feature_map.landmarks, rows).min(1).values.max() < 1e-12


@pytest.mark.parametrize(("learn", "repeats"), [(False, 300), (True, 120)])
def test_p_values_are_uniform_where_nothing_differs(learn, repeats):
    draws = (normal(2, 30, 2, seed=seed) for seed in range(repeats))
    found = [
        two_sample_test(x, y, learn=learn, n_components=5, n_permutations=99, trainer=SHORT, seed=seed)
        for seed, (x, y) in enumerate(draws)
    ]
    for name in ("p_value", "mmd_p_value"):
        values = np.array([getattr(each, name) for each in found])
        spread = np.random.default_rng(0).uniform(-0.01, 0, repeats)  # between a p-value and the one below it
        assert kstest(values + spread, "uniform").pvalue > 0.01
        for level in (0.05, 0.2):
            assert (values <= level).mean() < level + 3 * np.sqrt(level * (1 - level) / repeats)


def test_a_difference_that_only_a_learned_metric_shows():
    """One of ten columns has another shape; the nine others hide it from the median heuristic."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 300, 10))
    y[:, 0] = np.sign(y[:, 0]) * np.sqrt(0.9) + np.sqrt(0.1) * rng.normal(size=300)
    found = two_sample_test(x, y, n_components=20, rho=1e-2)
    assert found.p_value <= 0.01
    assert found.feature_map.kernel.gamma.argmax() == 0
    assert two_sample_test(x, y, learn=False, n_components=600).mmd_p_value > 0.05


def test_the_median_heuristic():
    x = torch.tensor([[0.0], [2.0]])
    assert start_gamma(x) == pytest.approx(0.25)
    assert start_gamma(torch.zeros(5, 2)) == 0.5
    assert start_gamma(x, kernel="laplacian") == pytest.approx(0.5)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "matern", "cauchy"])
def test_the_units_do_not_matter(kernel):
    for x, y in ((X, Y), [rows * (np.arange(len(rows)) < 4)[:, None] for rows in (X, Y)]):  # most of the latter equal
        scaled = [(unit * x, unit * y) for unit in (1.0, 1e4)]
        one, other = (two_sample_test(*pair, kernel, learn=False, n_components=50) for pair in scaled)
        assert other.statistic == pytest.approx(one.statistic, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, Y[:, :2]), {}, ValueError, "X and Y must have the same columns, got 3 and 2"),
        ((X, Y[:7]), {}, ValueError, "Y must have at least 8 rows, got 7"),
        ((X, np.full_like(Y, np.nan)), {}, ValueError, "Y has 60 entries that are NaN"),
        ((X, Y, "gauss"), {}, ValueError, "kernel must be one of"),
        ((X, Y), {"learn": 1}, TypeError, "learn must be True or False"),
        ((X, Y), {"n_permutations": 0}, ValueError, "n_permutations must be at least 1"),
        ((X, Y), {"n_components": 0}, ValueError, "n_components must be at least 1"),
        ((X, Y), {"rho": 0}, ValueError, "rho must be positive"),
        ((X, Y), {"trainer": "fast"}, TypeError, "trainer must be a discernel.Trainer"),
    ],
)
def test_bad_arguments_are_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        two_sample_test(*arguments, **options)


@pytest.fixture
def files(tmp_path):
    """Return three tables of equal columns, in units of their own; in the last one a column is other than before."""
    rng, paths = np.random.default_rng(0), []
    for name, spread in (("before", 1.0), ("same", 1.0), ("drifted", 3.0)):
        x = rng.normal(size=(400, 3)) * [1.0, 1.0, 1000.0]
        x[:, 1] *= spread
        paths.append(tmp_path / f"{name}.csv")
        np.savetxt(paths[-1], x, delimiter=",", header="a,b,c", comments="")
    return [str(path) for path in paths]


def test_the_command_is_a_drift_detector(files):
    before, same, drifted = files
    quiet = CliRunner().invoke(app, ["two-sample", before, same])
    assert quiet.exit_code == 0
    alarm = CliRunner().invoke(app, ["two-sample", before, drifted, "--rows", "300"])
    assert alarm.exit_code == 3
    assert "p = 0.001 (150 and 150 rows)" in alarm.stdout
    assert "the tables differ" in alarm.stdout
    plain = CliRunner().invoke(app, ["two-sample", before, drifted, "--no-learn", "--level", "0", "--json"])
    assert plain.exit_code == 0
    told = json.loads(plain.stdout)
    assert (told["counts"], told["differ"]) == ([400, 400], False)
    assert told["p_value"] < 0.05


def test_the_command_says_what_is_wrong_with_the_tables(files, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    refused = CliRunner().invoke(app, ["two-sample", files[0], str(tmp_path / "other.csv")])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: ")
    assert "same columns" in refused.stderr
    absent = CliRunner().invoke(app, ["two-sample", files[0], "nothing.csv"])
    assert (absent.exit_code, absent.stderr) == (1, "Error: there is no file or folder 'nothing.csv'\n")
