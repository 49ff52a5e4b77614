"""The page without a server: one file, whose sliders show what Python says."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.lab.explore import export
from bulkedge.lab.explore.room import Trace
from bulkedge.lab.explore.rooms import ROOMS, WidthRoom

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "rooms" / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "ROOMS", {"width": WidthRoom})
        patch.setattr(export, "COURSE", {})  # test_course.py has its file
        export.export(path)
    return path


@pytest.mark.parametrize("family", ROOMS.values())
def test_exported_values_are_in_their_domains(family):
    known = {each.name: each.domain for each in family.declared()}
    assert family.exported
    for name, values in family.exported.items():
        assert [known[name].check(name, each) for each in values] == list(values)
        assert list(values) == sorted(values) or not isinstance(values[0], int | float) or isinstance(values[0], bool)


def test_figures_share_their_parts():
    data = export.room_data(WidthRoom)
    assert len(data["figures"]) == np.prod([len(each["values"]) for each in data["controls"]])
    assert len({text for *_, own in data["figures"] for text in [own["meta"]]}) == len(data["figures"])
    used = {k for curves, layout, _ in data["figures"] for k in [*curves, layout]}
    assert used == set(range(len(data["parts"])))


def test_a_slider_of_the_file_shows_what_python_says(exported, open_page):
    page = open_page(exported, 390, "dark")
    page.wait_for_function("document.querySelector('#figure')?.layout?.meta")
    slider = page.locator("input[data-name=heads]")
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function("document.querySelector('#figure').layout.meta.includes('heads=2&')")
    found = page.evaluate("document.querySelector('#figure').data[0]")
    expected = WidthRoom(heads=2)
    mixture = be.programs.HeadMixture(np.eye(4), 2, score_variance=4.0)
    size = mixture.variance() ** 0.5
    assert page.evaluate("document.querySelector('#figure').layout.meta") == expected.query()
    assert np.allclose(found["y"], size * mixture.pdf(size * np.array(found["x"])), atol=1e-5)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert slider.get_attribute("aria-valuetext") == "2"


def test_only_lines_of_many_points_lose_some():
    places = np.arange(1000.0)
    thinned = export.thin(Trace("a", places, 2 * places, 0, "theory"))
    assert (len(thinned.x), thinned.x[0], thinned.x[-1]) == (export.MOST_POINTS, 0, 999)
    assert (thinned.y == 2 * thinned.x).all()
    for kept in (Trace("a", places[:7], places[:7]), Trace("a", places, places, shape="points")):
        assert export.thin(kept) is kept
