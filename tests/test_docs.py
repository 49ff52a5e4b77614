"""What documents cite is there: theory, tests, studies; and the design names every module that there is."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/theory").glob("*.md"))
STUDIES = ROOT / "src/bulkedge/studies"
CITING = sorted(
    path
    for folder in ("src", "docs", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md"} and "_build" not in path.parts
)


def prose(path):
    """A file as one line, so that citations may be broken over lines; comment signs are left out."""
    return " ".join(line.strip().removeprefix("#").strip() for line in path.read_text().splitlines())


def sections(page):
    """Headings of a page, each with the line before it."""
    lines = ["", *re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()]
    return {line.lstrip("# "): before for before, line in pairwise(lines) if line.startswith("#")}


def test_every_section_has_an_anchor_of_its_own():
    anchors = Counter()
    for page in PAGES:
        for heading, before in sections(page).items():
            assert re.fullmatch(r"\(theory[a-z0-9-]*\)=", before), f"{page.name}, {heading!r}: no anchor before it"
            anchors[before] += 1
    assert max(anchors.values()) == 1
    cited = {name for path in CITING for name in re.findall(r"\]\(#(theory[a-z0-9-]*)\)", path.read_text())}
    assert cited <= {anchor[1:-2] for anchor in anchors}


def test_cited_pages_and_sections_exist():
    found = 0
    for path in CITING:
        for page, section in re.findall(r'docs/theory/(\w+)\.md,? "([^"]+)"', prose(path)):
            assert section in sections(ROOT / f"docs/theory/{page}.md"), f"{path}: {page}.md has no section {section!r}"
            found += 1
        for page in re.findall(r"\btheory/(\w+)\b", prose(path)):
            assert (ROOT / f"docs/theory/{page}.md").exists(), f"{path} cites theory/{page}"
    assert found > 10


def test_nothing_outside_of_the_repository_is_cited():
    outside = re.compile("THEORY" + r"(\.md| sections? [0-9])")
    assert [str(path) for path in CITING if outside.search(prose(path))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_and_studies_that_the_theory_cites_exist(page):
    text = page.read_text()
    defined = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for quoted in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if quoted.startswith("tests/"):
            assert (ROOT / quoted).exists(), quoted
        elif quoted.startswith("test_"):
            assert quoted in defined, quoted
        study = quoted.removeprefix("bulkedge reproduce ")
        if re.fullmatch(r"[a-z]+/[a-z-]+", study) and (STUDIES / study.split("/")[0]).is_dir():
            assert (STUDIES / f"{study.replace('-', '_')}.py").exists(), study


def test_pages_are_short():
    assert max(len(page.read_text().splitlines()) for page in PAGES) < 200


# -- the design --------------------------------------------------------------------------------------------------------

DESIGN = (ROOT / "docs/design.md").read_text()
PACKAGE = ROOT / "src/bulkedge"
FIGURES = "studies"
"""The room whose folders are named as a kind: there is a file for each figure."""


def modules_in(folder):
    return {path.name for path in folder.glob("*.py")} - {"__init__.py", "__main__.py"}


def tree():
    """Rooms and modules of the tree in the design, each with the modules that its lines name."""
    block = re.search(r"## Tree\n\n```\n(.*?)```", DESIGN, re.DOTALL)[1]
    inside, outside = re.split(r"^(?=tests/)", block, flags=re.MULTILINE)
    found = {}
    for text in (*re.split(r"\n {2,4}(?=\S)", inside)[1:], *re.split(r"\n(?=\S)", outside)):
        name, _, says = text.partition(" ")
        found[name] = set(re.findall(r"\b\w+\.py\b", says))
    return found


def test_the_tree_of_the_design_names_every_module():
    named = tree()
    assert {name for name in named if name.endswith(".py")} - {"__init__.py"} == modules_in(PACKAGE)
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert {f"{room}/" for room in rooms} <= named.keys()
    for room in rooms - {FIGURES}:
        assert named[f"{room}/"] == modules_in(PACKAGE / room), room
    assert named["tools/"] == modules_in(ROOT / "tools")
    assert modules_in(PACKAGE / FIGURES) <= named[f"{FIGURES}/"]


def test_the_table_of_the_engine_names_every_module():
    named = [name for row in re.findall(r"^\| (`\w+\.py`.*?) \|", DESIGN, re.MULTILINE) for name in row.split(", ")]
    assert sorted(named) == sorted(f"`{name}`" for name in modules_in(PACKAGE / "laws/engine"))
