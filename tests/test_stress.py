from tests.stress import stress


def test_fits_that_are_killed_end_as_if_undisturbed(tmp_path):
    counts = stress(kills=6, seconds=120, root=tmp_path)
    assert counts["kill"] >= 6
    assert counts["runs"] >= 1
