"""The theory that code, claims and documents cite is there, and so are the tests and studies that it cites."""

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
