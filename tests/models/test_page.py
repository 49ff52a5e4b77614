"""The page of a scan: its size, that names in it stay names, and how it works in a browser."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import xarray as xr
from scans import made_up_scan

from bulkedge.models.scanning.page import PICTURES, coarseness, scan_page

NASTY = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&\u2028\u202eevil\ud800🦖"
BEYOND = """[...document.querySelectorAll("main *")].filter(each =>
    !each.closest(".heads, .scroll, svg") && each.getBoundingClientRect().right > innerWidth + 1).length"""
PIXELS = "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 48, 48).data]"


def nasty_scan():
    data = made_up_scan(2, 4, texts=2, model=NASTY, titles=[NASTY, "plain"])
    data = data.assign_coords(module=("item", [NASTY] * 8))
    data["kind"] = "item", np.array([NASTY] * 8, dtype=object)
    data["kinds"] = "item", np.array([NASTY] * 8, dtype=object)
    data.attrs["architecture"] = NASTY
    data[f"made_{NASTY}"] = "item", np.arange(8.0)
    return data


@pytest.fixture(scope="module")
def scans():
    found = {
        "small": made_up_scan(),
        "texts": made_up_scan(texts=3, seed=1),
        "one": made_up_scan(1, 1, draws=0, probe=False),
        "nasty": nasty_scan(),
        "large": made_up_scan(32, 32, texts=3),
        "earlier": made_up_scan(seed=5),
        "bare": made_up_scan(2, 3)[["beta"]],
    }
    found["tiny"] = made_up_scan(1, 4)
    found["tiny"]["largest"][0, 0] = 1e-30
    # heads at known places, so that what is shown can be told
    found["small"]["kind"][14] = "random spectrum"
    found["small"]["kinds"][14] = "random spectrum, local"
    return found


@pytest.fixture(scope="module")
def folder(scans, tmp_path_factory):
    """Every scan as a page."""
    place = tmp_path_factory.mktemp("pages")
    pages = {name: scan_page(data, name, summary=["It has heads."], warnings=["Look."]) for name, data in scans.items()}
    pages["pair"] = scan_page(scans["small"], "pair", before=scans["earlier"].isel(item=slice(None, None, -1)))
    pages["nasty"] = scan_page(
        scans["nasty"], NASTY, summary=[NASTY], warnings=[NASTY], before=scans["nasty"], labels=(NASTY, NASTY)
    )
    for name, text in pages.items():
        (place / f"{name}.html").write_text(text, encoding="utf-8")
    return place


@pytest.fixture
def visit(open_page, folder):
    return lambda name, *arguments, **options: open_page(folder / f"{name}.html", *arguments, **options)


def colours(page, selector=".map button"):
    return page.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => getComputedStyle(e).backgroundColor)")


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def cell(page, layer, head):
    return page.get_by_role("gridcell", name=f"layer {layer}, head {head}:")


def four(value):
    """As the page writes a number."""
    size = abs(value)
    text = f"{value:.2e}" if size < 1e-3 else f"{float(f'{value:.4g}'):g}"
    return re.sub(
        r"e([-+])0*", lambda found: "e" + found[1].strip("+"), text.replace("-", "−", 1) if value < 0 else text
    )


# -- without a browser -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "step"), [(1, 1), (1367, 1), (1368, 2), (5468, 2), (5469, 3), (10**7, 48)])
def test_pictures_are_as_fine_as_the_page_can_carry(heads, step):
    """In base 64, which has four characters for three bytes; of two scans together."""
    size = 48
    picture = np.broadcast_to(np.uint8(0), (heads, size, size))
    scan = xr.Dataset({"picture": (("item", "row", "column"), picture)})
    assert coarseness([scan]) == step
    assert coarseness([scan, scan.isel(item=slice(0))]) == step
    assert step == size or 4 / 3 * heads * (size // step) ** 2 <= PICTURES


def test_a_page_of_1024_heads_stays_below_eight_megabytes(folder, scans):
    assert (folder / "large.html").stat().st_size < 8e6
    pair = scan_page(scans["large"], "pair", before=scans["large"])
    assert len(pair.encode()) < 8e6


def test_names_stay_names(folder):
    text = (folder / "nasty.html").read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert "\u2028" not in text[text.index('id="data"') :]


def test_the_page_names_no_other_file(folder):
    text = (folder / "small.html").read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href)=\"?([^\" >]*)", text) == ["data:,"]
    assert "url(" not in text
    assert re.findall(r"https?://[^\s\"']*", text) == ["http://www.w3.org/2000/svg"]  # the name of a namespace
    assert "innerHTML" not in text


def test_every_number_that_the_script_asks_for_is_on_the_page(folder):
    text = (folder / "small.html").read_text(encoding="utf-8")
    names = {column["name"] for column in json.loads(text.split('id="data">')[1].split("</script>")[0])["columns"]}
    factors = set(re.findall(r"`(\w+)_\$\{factor\}`", text))
    assert factors == {"scale", "longer_entropy"}
    assert {f"{name}_{times}" for name in factors for times in (2, 8, 32)} <= names


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "texts", "one", "nasty", "large", "pair", "bare"])
def test_a_page_opens_at_390_pixels_without_a_complaint(visit, name):
    page = visit(name, 390, fragment="#head=0.0")
    assert page.locator("#head h2").inner_text() == "Layer 0, head 0"
    assert page.locator("canvas").count() == {"nasty": 2, "pair": 2, "bare": 0}.get(name, 1)
    assert overflow(page) <= 0
    assert page.evaluate(BEYOND) == 0
    assert page.evaluate("window.hacked") is None


def test_what_a_name_says_is_text(visit):
    page = visit("nasty", fragment="#head=1.2")
    for place in ("h1", "dl.facts", "#head", ".warnings li"):
        assert "<script>window.hacked=1</script>" in page.locator(place).first.inner_text()
    assert page.evaluate("window.hacked") is None


@pytest.mark.always
def test_a_click_shows_a_head_with_its_numbers(visit, scans):
    page, data = visit("small"), scans["small"]
    assert page.locator("#nothing").is_visible()
    cell(page, 1, 2).click()
    assert page.locator("#head h2").inner_text() == "Layer 1, head 2"
    assert not page.locator("#nothing").is_visible()
    for name in ("beta", "stable_rank", "near_mass"):
        cells = page.locator(f"tr[data-column={name}] td").all_inner_texts()
        expected = [data[each].values[0, 14] for each in (name, f"null_{name}", f"p_{name}")]
        assert [each.split()[0] for each in cells] == [four(each) for each in expected]
    assert "does not mean untrained" in page.locator("#head .says").inner_text()
    assert page.locator("#head .chip").all_inner_texts() == ["spectrum as random weights", "local"]
    assert page.locator("#head .bars li.held").count() == 2
    assert page.locator("#head svg .band").count() == 1
    assert max(page.evaluate(PIXELS)[::4]) == 0xFE  # red of the brightest colour
    cell(page, 3, 4).click()
    assert page.locator("#head h2").inner_text() == "Layer 3, head 4"
    assert page.url.endswith("#head=3.4")


def test_a_scan_without_draws_says_that_nothing_was_tested(visit):
    page = visit("one", fragment="#head=0.0")
    assert "Not tested against a null" in page.locator("#head .says").inner_text()
    assert page.locator("#head .details table").last.locator("thead th").all_inner_texts() == ["", "value"]
    assert page.locator("#head svg .band").count() == 0
    assert page.locator("optgroup[label=probe]").count() == 0


def test_several_texts_show_medians_their_range_and_agreement(visit, scans):
    page = visit("texts", fragment="#head=2.0")
    values = scans["texts"]["beta"].values[:, 24]
    shown = page.locator("tr[data-column=beta] td").first.inner_text().split()
    assert shown == [four(np.median(values)), four(values.min()), "to", four(values.max())]
    share = round(100 * float(scans["texts"]["agreement"][24]))
    assert f"{share} % of the texts" in page.locator("#head .says").inner_text()


def test_another_column_has_other_colours_a_legend_and_a_definition(visit, scans):
    page, seen = visit("small"), []
    for name in ("kind", "beta", "p", "near_mass", "coupling"):
        page.locator("#column").select_option(name)
        seen.append(colours(page))
        assert page.locator("#scale").is_visible() == (name != "kind")
        assert page.locator("#definition").inner_text().endswith(".")
    assert len({tuple(each) for each in seen}) == len(seen)
    assert page.locator(".map .missing").count() == int(np.isnan(scans["small"]["coupling"].values).sum())
    page.locator("#column").select_option("beta")
    values = scans["small"]["beta"].values[0]
    ends = page.locator("#scale .ticks span").all_inner_texts()
    assert [float(ends[0]), float(ends[-1])] == pytest.approx([values.min(), values.max()], rel=6e-3)
    # brighter is more: cividis grows in red and green from one end to the other
    light = [sum(map(int, re.findall(r"\d+", each)[:2])) for each in colours(page)]
    assert np.all(np.diff(np.array(light)[np.argsort(values)]) >= 0)


def test_tiny_values_do_not_take_the_scale_from_the_others(visit, scans):
    page, values = visit("tiny", fragment="#column=largest"), scans["tiny"]["largest"].values[0]
    ends = page.locator("#scale .ticks span").all_inner_texts()
    assert [float(ends[0]), float(ends[-1])] == pytest.approx([1e-5 * values.max(), values.max()], rel=6e-3)
    assert "smaller ones as the left end" in page.locator("#scale").inner_text()
    assert colours(page)[0] == "rgb(0, 34, 78)"


def test_two_scans_share_one_scale(visit, scans):
    page = visit("pair", fragment="#column=entropy&head=2.2")
    values = np.concatenate([scans[name]["entropy"].values[0] for name in ("earlier", "small")])
    ends = page.locator("#scale .ticks span").all_inner_texts()
    assert [float(ends[0]), float(ends[-1])] == pytest.approx([values.min(), values.max()], rel=6e-3)
    assert page.locator("#maps figcaption").all_inner_texts() == ["before", "after"]
    light = [sum(map(int, re.findall(r"\d+", each)[:2])) for each in colours(page)]
    assert np.all(np.diff(np.array(light)[np.argsort(values)]) >= 0)
    after, before = page.locator("tr[data-column=entropy] td").all_inner_texts()[:2]
    assert [after, before] == [four(scans[name]["entropy"].values[0, 26]) for name in ("small", "earlier")]


def test_the_filter_shows_heads_of_the_chosen_kinds(visit, scans):
    """A head counts as its first kind, as in the summary; the numbers on the buttons add up to all heads."""
    page, kinds = visit("small"), scans["small"]["kind"].values
    has = {name: set(np.flatnonzero(kinds == name)) for name in ("sink", "local")}
    numbers = [int(each) for each in page.locator("#filter [data-kind] small").all_inner_texts()]
    assert sorted(numbers) == sorted(Counter(kinds.tolist()).values())
    for chosen in (["sink"], ["sink", "local"]):
        page.locator(f"#filter [data-kind={chosen[-1]}]").click()
        expected = len(set().union(*(has[name] for name in chosen)))
        assert page.locator("#rows tr").filter(visible=True).count() == expected
        assert page.locator(".map button:not(.out)").count() == expected
        assert page.locator("#visible").inner_text().startswith(f"{expected} of 72")
    assert page.locator("#filter [aria-pressed=true]").count() == 2
    page.get_by_role("button", name="show all").click()
    assert page.locator("#rows tr").filter(visible=True).count() == 72


def test_the_map_is_walked_with_the_keyboard(visit):
    page = visit("small")
    cell(page, 0, 0).focus()
    for key in ("ArrowUp", "ArrowLeft", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#head h2").inner_text() == "Layer 2, head 1"
    assert page.locator("#readout").inner_text().startswith("layer 2, head 1: ")
    for key, head in {"End": 11, "ArrowRight": 11, "Home": 0}.items():
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.ariaLabel").startswith(f"layer 2, head {head}: ")
    assert page.locator(".map [tabindex='0']").count() == 1


def test_the_table_sorts_with_what_is_missing_last(visit, scans):
    page = visit("small", fragment="#column=coupling")
    values = np.array([float(f"{each:.4g}") for each in scans["small"]["coupling"].values[0]])  # as the page has them
    for sign in (-1, 1):  # largest first, then smallest
        page.get_by_role("columnheader", name="largest coupling").get_by_role("button").click()
        order = [
            int(each) for each in page.evaluate("[...document.querySelectorAll('#rows tr')].map(e => e.dataset.head)")
        ]
        assert order == np.argsort(sign * values, kind="stable").tolist()  # nan last
    page.locator("#rows tr").nth(3).click()
    assert page.locator(".map [aria-selected=true]").get_attribute("data-head") == str(order[3])


def test_the_address_keeps_what_is_shown(visit):
    page = visit("small", fragment="#column=q&kinds=sink,low-rank+content&head=4.7")
    assert page.locator("#column").input_value() == "q"
    assert page.locator("#filter [aria-pressed=true]").count() == 2
    assert page.locator("#head h2").inner_text() == "Layer 4, head 7"
    page.evaluate("location.hash = 'head=1.1'")
    page.get_by_role("heading", name="Layer 1, head 1").wait_for()
    assert page.locator("#column").input_value() == "kind"
    strange = visit("small", fragment="#column=__proto__&kinds=constructor&head=99.1")
    assert strange.locator("#nothing").is_visible()
    assert strange.locator(".map button.out").count() == 0


def test_dark_and_light_by_preference_and_by_choice(visit):
    def paper(page):
        return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))))

    for scheme in ("light", "dark"):
        page = visit("small", scheme=scheme)
        assert (paper(page) > 380) == (scheme == "light")
        for wanted in ("light", "dark"):
            page.locator("#theme").click()
            assert (paper(page) > 380) == (wanted == "light")
            assert page.locator("#theme").inner_text() == f"colours: {wanted}"


OVERLAPS = """() => {
    const said = [...document.querySelectorAll("#head h2, #head p, #head li, #head figcaption, #head h3, "
        + "#head .tokens, .aside h2, .aside #definition, .aside #filter, .aside #readout, "
        + ".aside .map, .aside #scale, #layers h2, #worth h2, #worth-chart figcaption")];
    const boxes = said.map(each => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
    const found = [];
    boxes.forEach(([one, a], place) => boxes.slice(place + 1).forEach(([two, b]) => {
        if (one.contains(two) || two.contains(one)) return;
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 1) found.push(one.outerHTML.slice(0, 60) + " | " + two.outerHTML.slice(0, 60));
    }));
    return found;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("name", ["small", "pair"])
def test_no_head_lies_under_anything(visit, scans, name, width):
    """Every head is clicked and read, with the page at its top, at the pictures, and now and then at the numbers."""
    page = visit(name, width)
    for head in range(scans["small"].sizes["item"]):
        page.evaluate(f"document.querySelectorAll('.map')[0].querySelectorAll('button')[{head}].click()")
        places = ["window.scrollTo(0, 0)", "document.querySelector('#head .figures').scrollIntoView()"]
        for place in places if head % 12 else [*places, "document.querySelector('#head table').scrollIntoView()"]:
            page.evaluate(place)
            assert page.evaluate(OVERLAPS) == []
    assert overflow(page) == 0


def test_costs_of_removals_and_tokens_along_the_attention(folder, open_page, scans):
    data = scans["small"].copy()
    rng = np.random.default_rng(0)
    data["effects_text"] = ("draw", "item"), rng.standard_normal((64, 72)) * rng.random(72)
    data["importance"] = "item", np.square(data["effects_text"].to_numpy()).mean(0) / 2
    data.attrs["shown_tokens"] = json.dumps([f" <b>word{k}" for k in range(48)])
    (folder / "worth.html").write_text(scan_page(data, "worth", measured=[(7, 0.5, 0.01)]), encoding="utf-8")
    page = open_page(folder / "worth.html", fragment="#head=0.0")
    chart = page.locator("#worth-chart svg")
    assert "by number of heads removed" in chart.get_attribute("aria-label")
    assert "measured of 7: 0.5" in chart.inner_html()
    assert page.locator(".tokens.rows bdi").all_inner_texts()[:2] == ["␣<b>word0", "␣<b>word4"]
    page.locator("#head canvas").hover(position={"x": 2, "y": 2})
    assert page.locator("#head canvas").get_attribute("title") == "from “ <b>word0” to “ <b>word0”"
    page.get_by_role("button", name="colour the map by importance").click()
    assert page.locator("#column").input_value() == "importance"
    assert page.evaluate(OVERLAPS) == []
    bare = open_page(folder / "small.html")
    assert bare.locator("#worth").is_hidden()
