"""What PyPI and those who cite are shown: the README without relative links, the version, and CITATION.cff."""

import re
import runpy
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

import bulkedge.version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = "https://code.example/bulkedge"


@pytest.fixture
def build(monkeypatch):
    """hatch_build.py, without the hatchling that calls it."""
    interface = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))


@pytest.mark.parametrize(
    ("readme", "linked", "words"),
    [
        ("see [how](docs/a.md).", f"see [how]({ADDRESS}/blob/v1.2.0/docs/a.md).", "see how."),
        ("[a `b[0]`](docs/a.md#b)", f"[a `b[0]`]({ADDRESS}/blob/v1.2.0/docs/a.md#b)", "a `b[0]`"),
        ("[up](#top)", f"[up]({ADDRESS}/blob/v1.2.0/README.md#top)", "up"),
        ('[how](a.md "A title")', f'[how]({ADDRESS}/blob/v1.2.0/a.md "A title")', "how"),
        ("![A bulk](docs/a.png)", f"![A bulk]({ADDRESS}/raw/v1.2.0/docs/a.png)", "*Picture: A bulk*"),
        (
            "[![A bulk](a.png)](a.md)",
            f"[![A bulk]({ADDRESS}/raw/v1.2.0/a.png)]({ADDRESS}/blob/v1.2.0/a.md)",
            "*Picture: A bulk*",
        ),
        (
            "[![A badge](https://badge.example/b.svg)](a.md)",
            f"[![A badge](https://badge.example/b.svg)]({ADDRESS}/blob/v1.2.0/a.md)",
            "![A badge](https://badge.example/b.svg)",
        ),
        (
            "[![A bulk](a.png)](https://paper.example)",
            f"[![A bulk]({ADDRESS}/raw/v1.2.0/a.png)](https://paper.example)",
            "[*Picture: A bulk*](https://paper.example)",
        ),
    ],
)
def test_relative_links_lead_to_the_tag_or_become_words(build, readme, linked, words):
    assert build.long_description(readme, ADDRESS, "1.2.0") == linked
    assert build.long_description(readme, "", "1.2.0") == words


@pytest.mark.parametrize(
    "readme",
    [
        "`[a](b.md)`",
        "``[a](b.md) ` [a](b.md)``",
        "```md\n[a](b.md)\n`\n![a](b.png)\n```",
        "~~~\n[a](b.md)\n~~~",
        "law[0] (of two), [paper](https://paper.example/a(1)) and [mail](mailto:someone@mail.example)",
    ],
)
def test_code_and_absolute_links_stay(build, readme):
    assert build.long_description(readme, ADDRESS, "1.2.0") == readme
    assert build.long_description(readme, "", "1.2.0") == readme


def test_what_is_not_released_is_linked_to_the_newest_commit(build):
    assert build.long_description("[a](b.md)", ADDRESS, "1.2.1.dev5") == f"[a]({ADDRESS}/blob/HEAD/b.md)"


@pytest.mark.parametrize("urls", [{}, {"Repository": ADDRESS}])
def test_the_long_description_has_no_relative_link(build, urls):
    hook, project = build.LongDescription(), PROJECT | {"version": "1.2.0", "urls": urls}
    hook.root = ROOT
    hook.update(project)
    blocks = MarkdownIt().parse(project["readme"]["text"])
    tokens = [*blocks, *(inline for block in blocks for inline in block.children or ())]
    assert [token.content for token in tokens if token.type.startswith("html")] == []  # whose links are not rewritten
    targets = [target for token in tokens for name, target in token.attrs.items() if name in {"href", "src"}]
    assert [target for target in targets if not urlsplit(target).scheme] == []
    assert any(target.startswith(ADDRESS) for target in targets) == bool(urls)


def test_the_version_is_what_is_installed_or_unknown(monkeypatch):
    assert bulkedge.version.__version__ == bulkedge.__version__ == metadata.version("bulkedge")

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert runpy.run_path(bulkedge.version.__file__)["__version__"] == "0+unknown"


def test_the_citation_has_the_papers_and_no_version_to_forget():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}  # which the format requires
    assert "version" not in citation
    cited = {each["value"] for paper in citation["references"] for each in paper["identifiers"]}
    assert cited == {f"arXiv:{found}" for url in PROJECT["urls"].values() for found in re.findall(r"/abs/(.*)", url)}
