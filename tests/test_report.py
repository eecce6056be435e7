"""The report: in a real browser, and with names that would like to be markup."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_wine

from discernel import ArraySource, DiscernelClassifier, DiscernelRegressor, Targets, Trainer
from discernel.evaluation import Said, plane, scores
from discernel.report import make_report
from discernel.report.charts import heat_map, line, scatter, ticks
from discernel.report.markup import Markup, png, tag
from tests.browser import CHROMIUM, Browser

EVIL = '<script>alert("1")</script>'
SHORT = {"trainer": Trainer(max_epochs=5), "random_state": 0}


def rows(x, targets):
    return ArraySource(torch.from_numpy(x.astype(np.float32)), targets)


def wine():
    """Names that are markup, and long ones."""
    data = load_wine()
    x = ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)
    y = np.array([EVIL, "a class with a very long name " * 3, "'\"&"])[data.target]
    names = [f"<b onclick=x>{name}</b>" for name in data.feature_names]
    model = DiscernelClassifier(10, early_stopping=True, **SHORT).fit(x[::2], y[::2])
    return make_report(
        model, rows(x[1::2], Targets.classes(y[1::2])), names=names, made_by=EVIL, data=EVIL, trained_on=True
    )


def digits():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    model = DiscernelClassifier(50, **SHORT).fit(x[:600], y[:600])
    train, test = rows(x[:600], Targets.classes(y[:600])), rows(x[600:], Targets.classes(y[600:]))
    return make_report(model, test, train, image=(8, 8), made_by="discernel report " + "x" * 300)


def many():
    """More classes than colours and than cells, some of them with a single row."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)).astype(np.float32), np.arange(300) % 45
    y[0] = 99
    model = DiscernelClassifier(10, feature_map="fourier", **SHORT).fit(x, y)
    return make_report(model, rows(x, Targets.classes(y)))


def diabetes():
    x, y = load_diabetes(return_X_y=True)
    x = x.astype(np.float32)
    model = DiscernelRegressor(10, **SHORT).fit(x[:300], y[:300])
    return make_report(model, rows(x[300:], Targets.values(y[300:])), rows(x[:300], Targets.values(y[:300])))


def little():
    """Six rows, three of each class."""
    return make_report(MODELS["two"], rows(FEW[:6], Targets.classes(list("abbaab"))))


def single():
    """One row, and so no second one for a score to compare it with."""
    return make_report(MODELS["values"], rows(FEW[:1], Targets.values(FEW[:1, 0])))


FEW = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
MODELS = {
    "two": DiscernelClassifier(5, **SHORT).fit(FEW, np.where(FEW[:, 0] > 0, "a", "b")),
    "three": DiscernelClassifier(5, **SHORT).fit(FEW, np.array(list("abc"))[np.arange(40) % 3]),
    "labels": DiscernelClassifier(5, **SHORT).fit(FEW, (FEW > 0).astype(int)),
    "values": DiscernelRegressor(5, **SHORT).fit(FEW, FEW[:, 0]),
}
PAGES = {"wine": wine, "digits": digits, "many": many, "diabetes": diabetes, "little": little, "single": single}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make())
    return folder


class Tags(HTMLParser):
    """The elements of a page, and that each is closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        if name not in ("meta", "link"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_needs_nothing_else(name, pages):
    text = (pages / f"{name}.html").read_text()
    page = Tags(text)
    assert page.open == []
    assert [each for each, _ in page.found if each == "script"] == ["script"]
    assert not [attributes for _, attributes in page.found if {"onclick", "onerror", "onload"} & attributes.keys()]
    addresses = [a[key] for _, a in page.found for key in ("src", "href", "srcset", "action") if key in a]
    assert all(address.startswith("data:") for address in addresses)
    assert "http:" not in text
    assert "https:" not in text


def test_the_sections_are_there(pages):
    headings = {name: re.findall("<h2>(.*?)</h2>", (pages / f"{name}.html").read_text()) for name in PAGES}
    assert (
        headings["wine"]
        == headings["digits"]
        == [
            *("Scores", "Confusions", "Discriminant plane", "Importance of features", "Landmarks", "Training"),
            "How to reproduce",
        ]
    )
    assert "Predictions" in headings["diabetes"]
    assert "Landmarks" not in headings["many"]


def test_the_scores_are_those_of_the_model_and_of_baselines(pages):
    text = (pages / "digits.html").read_text()
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    model = DiscernelClassifier(50, **SHORT).fit(x[:600], y[:600])
    assert f"{model.score(x[600:], y[600:]):.4f}" in text
    for words in ("50 random landmarks (Std Nyström)", "ridge on the raw features", "the most frequent class"):
        assert words in text
    assert "fitted on the training rows" in text
    assert "cross-validated, 5 folds" in (pages / "wine.html").read_text()
    assert "scores on new rows will be lower" in (pages / "wine.html").read_text()


def named(text):
    return rows(FEW[: len(text)], Targets.classes(list(text), names=np.array(sorted({"a", "b"} | set(text)))))


SMALL = [  # a model, rows, and the folds that any one of can be left out and two classes or rows be left
    *(("two", named(text), 0) for text in ("a", "aa", "aaaaaa", "ab", "aaab", "aaaaaab")),
    *(("two", named(text), folds) for text, folds in (("abab", 2), ("aabbab", 3), ("aaaabb", 4), ("aaaaabb", 5))),
    *(("three", named(text), folds) for text, folds in (("abc", 0), ("caba", 2), ("aaabc", 3), ("aabbcc", 2))),
    *(("labels", rows(FEW[:n], Targets.labels(FEW[:n] > 0)), folds) for n, folds in ((1, 0), (2, 0), (3, 3), (6, 5))),
    *(("values", rows(FEW[:n], Targets.values(FEW[:n, 0])), folds) for n, folds in ((1, 0), (2, 0), (3, 3), (4, 4))),
]


@pytest.mark.parametrize(("model", "source", "folds"), SMALL)
def test_small_tables_have_baselines_where_there_are_folds(model, source, folds):
    text = make_report(MODELS[model], source)
    assert ("ridge on the raw features" in text) == (folds > 0)
    assert (f"cross-validated, {folds} folds" if folds else "There are no baselines") in text
    assert not re.search(r"\b(nan|inf)\b", text)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_that_vary_along_a_line_have_a_plane(dtype):
    """What the first direction leaves of them is rounding, or nothing at all."""
    for slope in np.random.default_rng(0).normal(size=(50, 5)):
        features = (np.array([[0.1], [0.7]]) * slope + 1).astype(dtype)
        assert np.array_equal(plane(features, np.array([0, 1]))[:, 1], [0, 0])


@pytest.mark.parametrize("image", [(2, 2), (-1, -3)])
def test_images_have_as_many_numbers_as_there_are_features(image):
    with pytest.raises(ValueError, match="do not make 3 features"):
        make_report(MODELS["two"], named("abab"), image=image)


def test_one_is_not_many(pages):
    text = (pages / "single.html").read_text()
    assert "1 row; point at a dot" in text
    assert not re.search(r"\b1 (rows|epochs)\b", text)


def test_a_score_that_is_not_defined_is_left_out():
    assert scores(Said(np.ones(1), np.ones(1), None), None) == {"rmse": 0.0, "mae": 0.0}


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: the report was not looked at in a browser")
    with Browser() as browser:
        yield browser


OVERFLOW = """[...document.querySelectorAll("main *")].filter((each) => !each.closest(".scroll") && !each.closest("svg")
  && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((each) => each.outerHTML)"""
OUTSIDE = """[...document.querySelectorAll("svg text")].filter((each) => { const box = each.getBoundingClientRect(),
  all = each.closest("svg").getBoundingClientRect(); return box.left < all.left - 1 || box.right > all.right + 1 ||
  box.bottom > all.bottom + 1; }).map((each) => each.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("name", PAGES)
def test_it_renders_at_every_width_without_overflow_or_errors(name, width, scheme, pages, browser):
    browser.problems.clear()
    browser.show((pages / f"{name}.html").as_uri(), width, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOW) == []
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate("document.querySelectorAll('section').length") >= 5
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 380) == (scheme == "light")
    assert browser.problems == []


def test_the_caption_of_a_narrow_matrix_is_one_line(pages, browser):
    browser.show((pages / "little.html").as_uri(), 1280)
    caption, cell = (
        browser.evaluate(f"document.querySelector('{each}').getBoundingClientRect().height")
        for each in ("figcaption", ".confusion th")
    )
    assert caption < 1.5 * cell


def test_pointing_at_a_dot_shows_its_note_as_text(pages, browser):
    browser.problems.clear()
    browser.show((pages / "wine.html").as_uri(), 1280)
    dot = "[...document.querySelectorAll('.dots circle')].find((each) => each.dataset.note.includes('alert'))"
    browser.evaluate(f"{dot}.scrollIntoView({{block: 'center'}})")
    x, y = browser.evaluate(f"(() => {{ const b = {dot}.getBoundingClientRect(); return [b.x + 3, b.y + 3]; }})()")
    browser.point(x, y)
    assert EVIL in browser.evaluate("document.getElementById('note').textContent")
    assert browser.evaluate("getComputedStyle(document.getElementById('note')).display") == "block"
    browser.point(5, 5)
    assert browser.evaluate("getComputedStyle(document.getElementById('note')).display") == "none"
    assert browser.problems == []


def test_a_script_that_is_not_ours_does_not_run(pages, browser, tmp_path):
    page = (pages / "wine.html").read_text().replace("<main>", "<main><script>document.title = 'taken'</script>")
    (tmp_path / "page.html").write_text(page)
    browser.show((tmp_path / "page.html").as_uri(), 800)
    assert browser.evaluate("document.title") != "taken"
    assert browser.problems


def test_what_is_not_markup_is_escaped():
    assert tag("p", "<b>", Markup("<i>"), title='"<') == '<p title="&quot;&lt;">&lt;b&gt;<i></p>'
    assert EVIL not in scatter(np.eye(2), [0, 1], [EVIL, EVIL], EVIL, EVIL)
    assert EVIL not in heat_map(np.eye(2), [EVIL, EVIL])


def test_charts_take_what_does_not_vary():
    for chart in (line([1], [5.0], "x", "y"), line([1, 2], [0.0, 0.0], "x", "y")):
        assert "nan" not in chart
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_picture_is_what_it_was():
    pytest.importorskip("PIL")
    import io

    from PIL import Image

    values = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(png(values)))), values)
