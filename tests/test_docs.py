"""What documents cite is there: theory, tests, studies; and the design names every module that there is."""

import json
import re
import tokenize
from collections import Counter
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/theory").glob("*.md"))
STUDIES = ROOT / "src/bulkedge/lab/studies"
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
    assert STUDIES.is_dir()
    text = page.read_text()
    defined = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for quoted in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if quoted.startswith("tests/"):
            assert (ROOT / quoted).exists(), quoted
        elif quoted.startswith("test_"):
            assert quoted in defined, quoted
        study = quoted.removeprefix("bulkedge reproduce ").split(" ")[0]
        if re.fullmatch(r"[a-z]+/[a-z-]+", study) and (STUDIES / study.split("/")[0]).is_dir():
            assert (STUDIES / f"{study.replace('-', '_')}.py").exists(), study


def test_pages_are_short():
    pages = set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs/_build").rglob("*")) - {ROOT / "docs/design.md"}
    assert max(len(page.read_text().splitlines()) for page in pages) < 200


# -- the design --------------------------------------------------------------------------------------------------------

DESIGN = (ROOT / "docs/design.md").read_text()
PACKAGE = ROOT / "src/bulkedge"


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


def test_the_tree_of_the_design_names_every_room():
    """Rooms, rooms in rooms, and modules beside them."""
    named = tree()
    assert {name for name in named if name.endswith(".py")} - {"__init__.py"} == modules_in(PACKAGE)
    rooms = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py")}
    inner = {room for room in rooms if room.count("/") <= 1 and not room.startswith("lab/studies/")}
    assert {f"{room.rpartition('/')[2]}/" for room in inner} <= named.keys()
    assert named["tools/"] == modules_in(ROOT / "tools")


# -- pages -------------------------------------------------------------------------------------------------------------

DOCS = ROOT / "docs"
SITE = sorted(path for path in DOCS.rglob("*.md") if not {"_build", "figures", "reference"} & set(path.parts))
COLUMNS = 100
"""Columns of code that a page has room for at 1400 px: ``docs/_static/pages.css``, and ``docs/_ext/measure.py``."""
WIDER = {"design.md", "scan.md"}
"""Pages with trees and commands that are longer: a browser wraps these."""
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def fences(page):
    """Lines of a page inside of code, with their numbers; options on top of a block are not code."""
    fence = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"`{3,}|:{3,}", line)
        if mark and not fence:
            fence = mark[0]
        elif mark and line.startswith(fence):
            fence = ""
        elif fence and not re.match(r":\w+:", line):
            yield number, line


def running_text(page):
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(`{3,}).*?^\1", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))


def anchors(page):
    """What a link into a page may name: its labels, and its headings in lower case with hyphens."""
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-") for heading in headings}
    return set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)) | slugs


def drawn(target):
    """Whether a file is one that a build makes: a figure of a study or law, or of a page that runs, or its notebook."""
    return "figures" in Path(target).parts


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_of_a_page_lead_somewhere(page):
    labels = set().union(*(re.findall(r"^\(([\w-]+)\)=$", each.read_text(), re.MULTILINE) for each in SITE))
    for link in LINK.findall(running_text(page)):
        if link.startswith(("http:", "https:")):
            continue
        target, _, anchor = link.partition("#")
        path = DOCS / target.lstrip("/") if target.startswith("/") else page.parent / target
        assert not target or path.exists() or drawn(target), f"{page.name} links {link}"
        if anchor:
            assert anchor in (anchors(path) if target else anchors(page) | labels), f"{page.name} links {link}"


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_code_fits_beside_both_side_bars(page):
    if page.name not in WIDER:
        assert [f"{page.name}:{number}" for number, line in fences(page) if len(line) > COLUMNS] == []


def test_every_page_is_in_the_contents():
    listed = set()
    for page in SITE:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    assert {page.resolve() for page in SITE} == listed | {DOCS / "index.md"}


NAMED_FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|json|toml|yml|txt)|(?:src|tests|tools|docs)/[\w./-]+)`")
"""A file or folder of the repository between back quotes; capitals stand for names that a reader chooses."""
MADE = {"claims.json", "config.json", "failures.json"}
"""Files that commands and models write."""


@pytest.mark.parametrize("page", [*SITE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    folders = (ROOT, PACKAGE, PACKAGE / "laws/engine", DOCS, page.parent, ROOT / ".github/workflows")
    for name in NAMED_FILE.findall(page.read_text()):
        if name in MADE or re.search(r"\bNAME\b", name):
            continue
        inside = any((folder / name).exists() for folder in folders)
        assert inside or ("/" not in name and any(PACKAGE.rglob(name))), f"{page.name} names {name}"


# -- letters -----------------------------------------------------------------------------------------------------------

LETTER = re.compile(r"(?<![\w'’\\])l(?![\w’]|'[A-Za-z])|(?<!\w)l(?=_[\w{])|(?<=_)l(?!\w)|ℓ|\\ell\b")
"""The letter l, alone or with an index or as one, in either shape: it counts layers, and tokens are T."""
OF_LAYERS = (
    "ensembles/stack.py", "lab/explore/rooms/collapse.py", "nn/init.py", "propagation/",
    "lab/studies/items.py", "lab/studies/propagation/",
)  # fmt: skip
"""Modules and folders of the package that count layers."""
PAGES_OF_LAYERS = {
    "glossary.md", "isometry.md", "papers.md", "power.md", "programs.md", "propagation.md",
    "theory/index.md", "theory/propagation.md",
    "theory/isometry.md", "theory/training.md",
    "theory/trainability.md", "theory/width.md",
}  # fmt: skip
FOR_TOKENS = re.compile(
    r"sqrt\(l\)|√[lℓ]|\b(log|over|times|largest of) [lℓ]\b|\b[lℓ] (tokens|keys|scores)|tokens [lℓ]\b"
)


def written(path):
    """Comments and strings of a module that people may read, docstrings and labels included, with their lines."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            key = token.string.strip("\"'") == "l"  # of a dictionary that Plotly reads
            if token.type in (tokenize.COMMENT, tokenize.STRING) and not key:
                yield token.start[0], token.string


def test_the_letter_of_layers_is_found():
    for text in ("sqrt(l) A", "1/l", "`l` keys", "l", "log l'/log l", "l_i", "k_l", r"$\log\ell$", "√ℓ", "l x l"):
        assert LETTER.search(text), text
    for text in ("all", "l'Hôpital", "d'l'eau", "cell_l2", "I'll"):
        assert not LETTER.search(text), text
    for text in ("sqrt(l) A", "√ℓ", "largest of l scores", "l tokens", "exponent in log l", "share over l"):
        assert FOR_TOKENS.search(text), text
    for text in ("T^(1 - 2 l)", "after l layers", "layer ℓ of the weights", "of l layers", "nearly all keys"):
        assert not FOR_TOKENS.search(text), text


def test_l_counts_layers_in_the_package():
    for path in sorted(PACKAGE.rglob("*.py")):
        wrong = FOR_TOKENS if path.relative_to(PACKAGE).as_posix().startswith(OF_LAYERS) else LETTER
        for number, text in written(path) if wrong.search(path.read_text()) else ():
            assert not wrong.search(text), f"{path}:{number}: l and ℓ count layers; tokens are T"
    for path in (each for each in PACKAGE.rglob("*") if each.suffix in {".html", ".css", ".js"}):
        assert "ℓ" not in path.read_text(), f"{path}: ℓ counts layers; tokens are T"


def test_l_counts_layers_on_the_pages():
    assert not LETTER.search((ROOT / "README.md").read_text())
    for page in SITE:
        name, text = page.relative_to(DOCS).as_posix(), page.read_text()
        wrong = FOR_TOKENS if name in PAGES_OF_LAYERS else LETTER
        assert not (found := wrong.search(text)), f"{name}: {text[found.start() - 30 : found.end() + 30]!r}"
        if name != "theory/index.md":
            assert "d_{qk}" not in text, f"{page}: the dimension of queries and keys is d"


@pytest.mark.parametrize("page", sorted((DOCS / "benchmarks").glob("*.md")), ids=lambda page: page.stem)
def test_a_benchmark_says_when_and_on_what_it_was_measured(page):
    text = page.read_text()
    if page.stem == "index":
        assert {f"[]({each.name})" for each in page.parent.glob("*.md")} - {"[](index.md)"} == set(
            re.findall(r"^\| (\[\]\(\w+\.md\)) \|", text, re.MULTILINE)
        )
        return
    assert re.search(r"\b20\d\d-\d\d-\d\d\b|\b\d+ [A-Z][a-z]+ 20\d\d\b", text), f"{page.name}: when?"
    assert re.search(r"\b(\d+|one|two) (cores?|NVIDIA)\b", text), f"{page.name}: on what?"


GPU_PAGES = {
    "preflight": ("preflight", "written"),
    "gap_free": ("gap_free", "page"),
    "gap_free_step": ("gap_free_step", "page"),
    "channel_gpu": ("channel", "gpu_page"),
    "watch_gpu": ("watch", "gpu_page"),
    "operator_gpu": ("operator_gpu_page", "page"),
    "trainability_gpu": ("trainability_page", "page"),
}
"""By their names: the benchmark that writes them from the numbers beside them, and its function."""


def test_every_kept_measurement_has_its_page():
    assert {each.stem for each in (DOCS / "benchmarks").glob("*.json")} == set(GPU_PAGES)


@pytest.mark.parametrize("name", GPU_PAGES)
def test_pages_of_a_gpu_are_written_from_their_numbers(name, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT)
    benchmark, written = GPU_PAGES[name]
    numbers = json.loads((DOCS / f"benchmarks/{name}.json").read_text())
    found = getattr(import_module(f"benchmarks.{benchmark}"), written)(numbers)
    assert found == (DOCS / f"benchmarks/{name}.md").read_text()


def test_the_comparison_with_peers_has_the_numbers_of_the_benchmark():
    text = (DOCS / "peers.md").read_text()
    table = text[text.index("error inside") : text.index("1000 quantiles")]
    measured = (DOCS / "benchmarks/laws.md").read_text()
    numbers = re.findall(r"\d\.\de[+-]\d\d|\d+(?= ×)", table)
    assert len(numbers) > 25
    assert [number for number in numbers if number not in measured] == []
