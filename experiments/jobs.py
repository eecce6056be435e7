"""What is to be fitted, and in which order: one `Job` a row of the table."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

RHO = 1e-4
RHOS = (1e-6, 1e-5, 1e-3, 1e-2, 1e-1)  # the sweep; 1e-4 is in the curves
GAMMA_FACTORS = (0.25, 0.5, 2.0, 4.0)  # of the protocol's gamma, tried for the untrained maps
STUDIES = {"paper": ("curves", "rho", "init"), "patient": ("curves",), "fast": ("curves", "gamma", "lines")}
SVC_ROWS = 100_000  # an exact SVC of more training rows takes days


class Job(NamedTuple):
    """A fit. These columns are what makes a row of the table different from all others."""

    data: str
    map: str  # "nystroem", "fourier"; "exact" for models that have no features
    criterion: str  # "di", "ls", "ce"; "none" for an untrained map; "svc", "lightgbm"
    init: str  # "uniform", "kmeans"; "spectral" for frequencies from the kernel's spectrum
    n_components: int
    seed: int
    gamma: float
    rho: float
    schedule: str  # "paper", "patient", "fast"; "none" where nothing is trained


class Tier(NamedTuple):
    """Numbers of features that are done together, for so many seeds."""

    components: tuple[int, ...]
    seeds: int


class Plan(NamedTuple):
    """What is done on a data set."""

    tiers: tuple[Tier, ...]
    study: Tier  # for the sweep of rho and for k-means initialisation
    wide: tuple[int, ...] = ()  # further numbers of features of the untrained maps, to see what learning saves


PLANS = {
    "digits": Plan((Tier((10, 20, 40, 80), 10),), Tier((20,), 3), (160, 320)),
    "letter": Plan((Tier((25, 50, 100, 200, 400), 10), Tier((800,), 10)), Tier((100,), 10), (1600,)),
    "mnist": Plan((Tier((50, 100, 200, 500), 3), Tier((1000,), 1)), Tier((100,), 3), (2000,)),
    "covtype": Plan((Tier((50, 100, 200), 3), Tier((500,), 1)), Tier((50,), 3), (1000,)),
}
QUICK = Plan((Tier((10, 20, 40), 3),), Tier((20,), 3), (80,))

UNTRAINED = (("nystroem", "uniform"), ("nystroem", "kmeans"), ("fourier", "spectral"))
INIT = {"nystroem": "uniform", "fourier": "spectral"}
CRITERIA = ("di", "ls", "ce")


def chosen(plan: Plan, components: Sequence[int] = (), seeds: int | None = None) -> Plan:
    """Return the plan with these numbers of features only, and so many seeds throughout."""

    def choose(tier: Tier) -> Tier:
        wanted = tuple(j for j in tier.components if not components or j in components)
        return Tier(wanted, tier.seeds if seeds is None else seeds)

    known = {j for tier in (*plan.tiers, plan.study) for j in tier.components} | set(plan.wide)
    others = Tier(tuple(j for j in components if j not in known), max(tier.seeds for tier in plan.tiers))
    tiers = [choose(tier) for tier in (*plan.tiers, others._replace(seeds=seeds or others.seeds))]
    wide = tuple(j for j in plan.wide if not components or j in components)
    return Plan(tuple(tier for tier in tiers if tier.components), choose(plan.study), wide)


def jobs(data: str, gamma: float, plan: Plan, schedule: str, studies: Sequence[str], n_train: int) -> list[Job]:
    """Return what to fit, in the order in which an early stop does the least harm: whole curves of one seed first.

    Within a seed, the small numbers of features come first, and all methods of one before the next.
    """
    parts = {
        "curves": lambda: _curves(data, gamma, plan, schedule),
        "rho": lambda: _rho(data, gamma, plan, schedule),
        "init": lambda: _init(data, gamma, plan, schedule),
        "gamma": lambda: _gamma(data, gamma, plan),
        "lines": lambda: _lines(data, gamma, n_train),
    }
    unknown = [study for study in studies if study not in parts]
    if unknown:
        raise ValueError(f"there is no study {unknown[0]!r}; there are {', '.join(parts)}")
    return list(dict.fromkeys(job for study in studies for job in parts[study]()))


def _runs(tiers: Sequence[Tier]) -> Iterator[tuple[int, int]]:
    """Yield seeds and numbers of features, tier by tier and seed by seed."""
    for tier in tiers:
        for seed in range(tier.seeds):
            for n_components in tier.components:
                yield seed, n_components


def _untrained(data: str, n_components: int, seed: int, gamma: float) -> Iterator[Job]:
    for name, init in UNTRAINED:
        yield Job(data, name, "none", init, n_components, seed, gamma, RHO, "none")


def _curves(data, gamma, plan, schedule) -> Iterator[Job]:
    for seed, j in _runs(plan.tiers):
        yield from _untrained(data, j, seed, gamma)
        for name, init in INIT.items():
            for criterion in CRITERIA:
                yield Job(data, name, criterion, init, j, seed, gamma, RHO, schedule)


def _rho(data, gamma, plan, schedule) -> Iterator[Job]:
    for seed, j in _runs([plan.study]):
        for rho in RHOS:
            for name, init in INIT.items():
                yield Job(data, name, "di", init, j, seed, gamma, rho, schedule)


def _init(data, gamma, plan, schedule) -> Iterator[Job]:
    for seed, j in _runs([plan.study]):
        yield Job(data, "nystroem", "di", "kmeans", j, seed, gamma, RHO, schedule)


def _gamma(data, gamma, plan) -> Iterator[Job]:
    components = sorted({j for tier in plan.tiers for j in tier.components} | set(plan.wide))
    for j in components:
        for factor in (1.0, *GAMMA_FACTORS):
            yield from _untrained(data, j, 0, gamma * factor)


def _lines(data, gamma, n_train) -> Iterator[Job]:
    for model in ("lightgbm", "svc"):
        if model != "svc" or n_train <= SVC_ROWS:
            yield Job(data, "exact", model, "none", 0, 0, gamma, RHO, "none")
