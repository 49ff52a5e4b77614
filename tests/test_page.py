"""The pages: what they say, how the filter and the links work in a browser, and the papers item by item."""

import re
import sys
from html import unescape
from pathlib import Path

import pytest
from exhibits import First, Second, Third

from bulkedge.lab.gallery.page import anchor, cell, drawing, papers_markdown, rows
from bulkedge.lab.gallery.run import reproduce
from bulkedge.lab.studies import items
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.studies.items import PAPERS, Item
from bulkedge.lab.studies.laws.edge import LawsEdge
from bulkedge.support.errors import StoreError
from bulkedge.support.estimates import Estimate

ROOT = Path(__file__).resolve().parent.parent
ITEMS = (
    Item("Theorem 1", "values below < the edge | stay, for a_1 of $2"),
    Item("Lemma 1", "an identity", tested="tests/test_page.py::test_every_item_has_a_row_that_says_something"),
    Item("Open question 2", "what happens next", not_done="nobody knows what to measure", asks=True),
    Item("Figure 9", "what a study shows that was not run here"),
    Item("Equation 7", "a root", corrected="it is the other root"),
    Item("Figure 5", "a lead that grows"),
)


class Paper(First):
    """Its claims name items of a paper, one of them an item that no paper has."""

    def claims(self, data):
        rival = Rival("far away", 9.0)
        here, old = "equivalence: Theorem 1; ours", "equivalence: Theorem 77"
        values = {"it holds": 0.0, "it fails": 1.0}
        found = [Claim(name, here, Estimate(value, 0.1), 0.0, rival) for name, value in values.items()]
        printed, against = Rival("the larger root, as printed", 2.0), "equivalence: not Figure 5, Open question 2"
        found.append(
            Claim("a root", "equivalence: Equation 7", Estimate(0.1, 0.1), 0.0, printed, 0.5, "derived: next order")
        )
        found.append(Claim("the lead shrinks", against, Estimate(-1.0, 0.1), -1.0, ("as printed, it grows", 0.0)))
        return [*found, Claim("of another version", old, Estimate(0.0, 0.1), 0.0, rival)]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """Claims of all verdicts, and items of all states."""
    folder = tmp_path_factory.mktemp("gallery")
    with pytest.MonkeyPatch.context() as patch:
        for paper in PAPERS:
            patch.setitem(items.ITEMS, paper, ITEMS if paper == "equivalence" else ())
        results = reproduce([LawsEdge(size=50, draws=200)], folder, seed=3)
        results += reproduce([Paper(), Second(undecided=2), Third(failing=1)], folder)
        return folder, papers_markdown(results)


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def visit(open_page, gallery):
    """Opens a page of the gallery."""
    return lambda name, *arguments, **options: open_page(gallery[0] / name, *arguments, **options)


def shown(page, selector="tr[data-verdict]"):
    return page.locator(selector).filter(visible=True).count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("name", ["index.html", "papers.html"])
def test_a_page_is_readable_at_any_width_in_light_and_dark(visit, name, width, scheme):
    page = visit(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert (
        page.evaluate("[...document.querySelectorAll('td')].filter(e => e.scrollWidth > e.clientWidth + 1).length") == 0
    )
    if width == 390:  # cards: every cell has the width of its card
        narrow = "[...document.querySelectorAll('tr[data-verdict] td')].filter(e => e.clientWidth < 300).length"
        assert page.evaluate(narrow) == 0
    page.evaluate("Promise.all([...document.images].map(each => { each.loading = 'eager'; return each.decode(); }))")
    # the space kept for a figure before it loads is that of the figure: what is below does not move
    sizes = page.evaluate("[...document.images].map(i => [i.width, i.height, i.naturalWidth, i.naturalHeight])")
    assert all(wide > 100 for _, _, wide, _ in sizes)
    assert all(width / height == pytest.approx(wide / high, rel=0.03) for width, height, wide, high in sizes)
    ink, paper = (
        sum(map(int, re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{what}"))[:3])) / 3
        for what in ("color", "backgroundColor")
    )
    assert abs(ink - paper) > 180  # of 255
    assert (paper > ink) == (scheme == "light")


def test_what_a_claim_says_is_text_and_not_markup(visit):
    text = visit("index.html").inner_text("body")
    assert "claim 0 of <exhibits/third>" in text
    assert "far <away>" in text
    assert text.count("not decided at this size") == 2 + text.count("mean of the scaled largest eigenvalue")


def test_the_filter_shows_what_has_the_words_and_the_verdict(visit):
    page = visit("index.html")
    everything, studies = shown(page), shown(page, "section.study")
    assert (everything, studies) == (2 + 5 + 5 + 5, 4)
    page.get_by_label("undecided").check()
    undecided = shown(page)
    assert undecided == shown(page, "td.undecided") > 0
    assert page.locator("#shown").inner_text() == f"{undecided} of {everything} shown"
    page.get_by_label("all").check()
    page.get_by_label("Find").fill("EXHIBITS/third claim")
    assert (shown(page), shown(page, "section.study"), shown(page, "section.paper")) == (5, 1, 1)
    page.get_by_label("fails", exact=True).check()
    assert shown(page) == 1
    page.get_by_label("Find").fill("no such words")
    assert (shown(page), shown(page, "section.study"), shown(page, "section.paper")) == (0, 0, 0)
    assert page.get_by_text("No claim has all of these words").is_visible()
    page.get_by_label("Find").fill("")
    page.get_by_label("all").check()
    assert (shown(page), shown(page, "section.study")) == (everything, studies)
    assert not page.get_by_text("No claim has all of these words").is_visible()


def test_the_filter_of_items(visit):
    page = visit("papers.html")
    assert shown(page) == len(ITEMS)
    for state, number in {"fails": 2, "holds as stated": 1, "holds corrected": 1, "open": 2, "all": 6}.items():
        page.get_by_label(state, exact=True).check()
        assert shown(page) == number


def test_links_lead_to_studies_claims_and_files(visit, gallery):
    folder, _ = gallery
    for name in ("index.html", "papers.html"):
        page = visit(name)
        for link in page.evaluate("[...document.links].map(link => link.getAttribute('href'))"):
            target, _, fragment = link.partition("#")
            assert (folder / (target or name)).exists(), link
            if fragment:
                assert f'id="{fragment}"' in (folder / (target or name)).read_text(), link
    page = visit("papers.html")
    page.get_by_role("link", name="exhibits/paper").first.click()
    assert page.url.endswith(f"index.html#{anchor('exhibits/paper', 1)}")
    assert page.locator("tr:target").inner_text().startswith("it holds")


def test_a_figure_has_its_caption_and_code_that_draws_it(gallery, monkeypatch):
    folder, _ = gallery
    text = unescape((folder / "index.html").read_text())
    assert f"<figcaption>{LawsEdge.caption}</figcaption>" in text
    code = drawing("laws/edge")
    assert f"<code>{code}</code>" in text
    assert code in (ROOT / "docs/gallery.md").read_text()
    assert len(code.splitlines()) <= 15
    monkeypatch.chdir(folder)
    exec(code, {})  # noqa: S102
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    (folder / "figure.pdf").unlink()


# -- the papers, item by item ------------------------------------------------------------------------------------------


def test_every_item_has_a_row_that_says_something(gallery):
    folder, document = gallery
    outcomes = re.findall(r'<td class="outcome">(.*?)</td>', (folder / "papers.html").read_text(), re.DOTALL)
    outcomes = [" ".join(re.sub(r"<.*?>", " ", each).split()) for each in outcomes]
    assert len(outcomes) == len(ITEMS)
    assert outcomes[0].startswith(
        "exhibits/paper : it holds holds 0.0 σ off; far away: excluded by 90 σ exhibits/paper : it fails fails"
    )
    assert outcomes[1:4] == [
        "Checked by tests/test_page.py::test_every_item_has_a_row_that_says_something",
        (
            "exhibits/paper : the lead shrinks holds 0.0 σ off; as printed, it grows: excluded by 10 σ "
            "Not done: nobody knows what to measure"
        ),
        "No claim of this folder names it: its study was not run here.",
    ]
    rows = [line for line in document.splitlines() if line.startswith("| ") and not line.startswith("| item ")]
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    assert [len(each) for each in cells] == [4] * len(ITEMS)
    assert all(cell.strip() for row in cells for cell in row)
    assert cells[0][1].strip() == r"values below \< the edge \| stay, for a\_1 of \$2"


def test_an_item_has_one_of_four_verdicts(gallery):
    """A test is enough, a claim against it is not; printed forms are excluded by what was measured, nothing granted."""
    folder, document = gallery
    verdicts = {"Theorem 1": "fails", "Lemma 1": "holds as stated", "Open question 2": "open", "Figure 9": "open"}
    verdicts |= {"Equation 7": r"holds corrected\*\*: it is the other root; printed form excluded by 19 σ"}
    for name, verdict in (verdicts | {"Figure 5": "fails"}).items():
        assert re.search(rf"^\| {name} \| [^|]*(?:\\\|[^|]*)* \| \*\*{verdict}", document, re.MULTILINE), name
    assert "against it: the lead shrinks, **holds** (0.0 σ off; as printed, it grows: excluded by 10 σ)" in document
    counts = "6 items: 1 holds as stated, 1 holds corrected, 2 fail, 2 are open."
    assert document.count(counts) == 2  # of all papers, and of the one that has items here
    assert (folder / "papers.html").read_text().count(counts) >= 2


def test_the_items_of_the_papers_have_no_empty_row():
    """Of a folder with no claims at all, each row still says why."""
    for paper in PAPERS:
        for row in rows(paper, []):
            assert row.item.name
            assert row.item.says
            assert row.verdict in ("open", "holds as stated" if row.item.tested else "open")


def test_the_document_has_every_item():
    """``python tools/papers.py`` writes it anew."""
    text = (ROOT / "docs" / "papers.md").read_text()
    missing = [item.name for paper in PAPERS for item in items.ITEMS[paper] if f"| {cell(item.name)} |" not in text]
    assert missing == []
    power = (ROOT / "docs" / "power.md").read_text()
    assert [paper for paper in PAPERS if f"| {paper} |" not in power] == []
    assert "no reason is written down" not in power


def test_the_tool_writes_the_document(gallery, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "papers", raising=False)
    tool = __import__("papers")
    folder = tmp_path / "folder"
    with pytest.raises(StoreError, match="is not a folder"):
        tool.write(folder, tmp_path)
    reproduce([Second(), Paper()], folder)
    tool.write(folder, tmp_path)
    text = (tmp_path / "papers.md").read_text()
    assert "# The papers, item by item" in text
    assert all(title in text for title in PAPERS.values())
    power = (tmp_path / "power.md").read_text()
    assert "# How small an error the claims detect" in power
    assert [line for line in power.splitlines() if line.startswith("- *")] == []
    run = (tmp_path / "paper_size.md").read_text()
    assert "2 studies" in run
    assert f"| `{Second.name()}` |" in run
    (folder / Second.name() / "figure.png").write_text("damaged")
    with pytest.raises(StoreError, match="or damaged ones: exhibits/second"):
        tool.write(folder, tmp_path)
