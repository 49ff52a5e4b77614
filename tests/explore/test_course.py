"""The course: what its chapters say is so, their axes stay, their questions have answers, with and without a server."""

import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import bulkedge as be
from bulkedge.lab.explore import export
from bulkedge.lab.explore.course import COURSE
from bulkedge.lab.explore.course.chapter import first_place, texts
from bulkedge.lab.explore.course.heads import BulkChapter, SentenceChapter, SharpnessChapter, fresh_head
from bulkedge.lab.explore.course.signals import DepthChapter, OwnHeadChapter, SignalChapter, judged

LONG = {"bulk", "signal", "own-head"}  # chapters that take some seconds
CHAPTERS = pytest.mark.parametrize(
    "chapter",
    [pytest.param(each, marks=[pytest.mark.slow] * (name in LONG)) for name, each in COURSE.items()],
    ids=list(COURSE),
)


@pytest.fixture(autouse=True)
def told():
    """Laws say where they end; the chapters say it in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", be.RegimeWarning)
        yield


def ends(chapter):
    """A chapter at the first and the last stop of its first slider."""
    name, values = next(iter(chapter.stops().items()))
    return [chapter(**{name: each}) for each in (values[0], values[-1])]


@CHAPTERS
def test_axes_and_colours_stay_while_a_slider_moves(chapter):
    first, last = ends(chapter)
    for one, other in zip(first.panels(), last.panels(), strict=True):
        assert one._replace(title="") == other._replace(title="")
        assert one.words or (one.across and one.down)
    maps = [[each.limits for each in room.theory() if each.shape == "map"] for room in (first, last)]
    assert maps[0] == maps[1]


@CHAPTERS
def test_a_legend_is_short_and_every_answer_reveals(chapter):
    for room in ends(chapter):
        curves = room.theory()
        assert len({each.label for each in curves if each.shape != "map"}) <= 5
        assert all(0 <= each.after <= len(chapter.questions) for each in curves)
        drawn = [each for each in curves if each.look == "simulation" and each.shape == "points"]
        assert all(each.error is not None for each in drawn)
        assert room.remark().endswith(".")
        assert room.final_remark().endswith(".")
    assert any(each.after for each in curves)
    assert ends(chapter)[0].remark() != ends(chapter)[1].remark()


@CHAPTERS
def test_a_question_of_a_place_has_one_with_others_before_and_after(chapter):
    name, values = next(iter(chapter.stops().items()))
    for number, question in enumerate(chapter.questions):
        if question.options:
            assert 0 <= question.right < len(question.options)
            continue
        found = [chapter(**{name: each}).place(number) for each in values]
        assert found == sorted(found)
        assert set(found) == {-1, 0, 1}
        assert question.low
        assert question.high


def test_the_first_place_has_some_slack():
    assert [first_place("abcd", each, [False, True, True, True]) for each in "abcd"] == [-1, 0, 0, 1]


def test_the_trained_head_looks_from_it_to_animal():
    chapter = SentenceChapter(scale=1.0)
    shares = chapter.shares()
    assert np.allclose(shares, texts()["sentence"], atol=1e-6)
    assert "“it” gives 76% to “animal”" in chapter.remark()
    assert np.allclose(replace(chapter, scale=0.0).shares(), 1 / 12)
    least = replace(chapter, scale=next(s for s in chapter.stops()["scale"] if replace(chapter, scale=s).place(1) == 0))
    assert 0.5 < least.shares()[8].max() < 0.6


def test_the_second_value_leaves_the_bulk_by_a_few_large_weights():
    first = next(b for b in BulkChapter.stops()["beta"] if BulkChapter(beta=b).place(1) == 0)
    assert first == 1.1
    edge = np.sqrt(BulkChapter(beta=first).law().edge / 256)
    matrix = fresh_head(first, 0)
    assert np.linalg.svd(matrix, compute_uv=False)[1] > 1.05 * edge
    without = matrix.copy()
    without.ravel()[np.argsort(matrix.ravel())[-8:]] = 1 / 256
    assert np.linalg.svd(without, compute_uv=False)[1] == pytest.approx(edge, rel=0.03)  # "back at the edge"


@pytest.mark.parametrize("tokens", [16, 256])
def test_words_in_effect_are_those_of_theory(tokens):
    curves = {each.label: each for each in SharpnessChapter(tokens=tokens).theory()}
    drawn, exact = curves["8 × 32 rows"], curves["theory"]
    # eight draws: errors are themselves uncertain by a quarter, and neighbours share their scores
    assert np.all(np.abs(drawn.y - exact.y)[1:] < 4.5 * drawn.error[1:])


def test_words_collapse_in_three_layers_and_stay_apart_without_the_mean():
    assert [DepthChapter(layers=each).place(0) for each in (2, 3, 4)] == [-1, 0, 1]
    assert "cosine 0.999" in DepthChapter(layers=3).remark()
    ranks = next(each for each in DepthChapter(kept=False).theory() if each.look == "simulation").y
    assert np.all(ranks > 0.3)


@pytest.mark.slow
def test_a_signal_is_seen_from_the_threshold_on():
    chapter = SignalChapter(signal=2.0)
    curves = chapter.theory()
    limit = next(each.x for each in curves if each.label == "threshold")
    line = next(each for each in curves if each.label == "theory" and each.panel == 1)
    assert np.all(line.y[line.x < limit] == 0)
    first = next(s for s in chapter.stops()["signal"] if replace(chapter, signal=s).place(0) == 0)
    assert limit < first <= limit + 0.1
    more = next(each.x for each in replace(chapter, texts=2500).theory() if each.label == "threshold")
    assert 0 < more < limit


@pytest.mark.slow
def test_verdicts_are_what_the_last_chapter_says():
    verdicts = {head: judged(head)[1].verdict for head in OwnHeadChapter.stops()["head"]}
    assert "structure of its own" in verdicts["B"]
    assert "plus one signal" in verdicts["C"]
    for head in "AD":
        assert "looks like" in verdicts[head]
        assert "signal" not in verdicts[head]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The first chapter and the fourth as a file."""
    path = tmp_path_factory.mktemp("course") / "course.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "COURSE", {name: COURSE[name] for name in ("sentence", "depth")})
        patch.setattr(export, "ROOMS", {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", be.RegimeWarning)
            export.export(path)
    return path


@pytest.mark.always
def test_a_chapter_asks_checks_and_reveals_from_a_file(file, open_page):
    pytest.importorskip("plotly")
    page = open_page(file)
    page.wait_for_selector("#figure .main-svg")
    names = "document.querySelector('#figure').data.map(each => each.name)"
    assert "equal shares, 1/12" not in page.evaluate(names)
    page.get_by_role("button", name="nothing at all").click()
    assert "Think again" in page.inner_text(".question .wrong")
    page.get_by_role("button", name="1/12 to each").click()
    assert "equal shares, 1/12" in page.evaluate(names)
    assert "1/12 = 8%" in page.inner_text("#solved")
    slider = page.locator("#control-scale")
    slider.press("Home")
    assert page.inner_text("#remark") == SentenceChapter(scale=0.0).remark()
    page.get_by_role("button", name="Check").click()
    assert page.inner_text(".question .wrong").startswith("Not yet")
    for _ in range(7):
        slider.press("ArrowRight")
    page.get_by_role("button", name="Check").click()
    assert "Question 2 of 2: answered" in page.inner_text("#solved")
    page.get_by_role("button", name="Depth and collapse →").click()
    page.get_by_role("button", name="Show me").click()
    assert page.input_value("#control-layers") == "3"
    assert page.inner_text("h1") == "2. Depth and collapse"  # of this file
    assert page.evaluate("location.hash") == "#depth"


def test_every_stop_of_a_chapter_is_in_its_data():
    data = export.chapter_data(SentenceChapter)
    stops = SentenceChapter.stops()
    assert len(data["figures"]) == np.prod([len(each) for each in stops.values()])
    for (*_, words), values in zip(data["figures"], product(*stops.values()), strict=True):
        room = SentenceChapter(**dict(zip(stops, values, strict=True)))
        assert (words["remark"], words["places"][1]) == (room.remark(), room.place(1))
