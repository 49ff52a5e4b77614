"""Check the links of built pages: addresses inside the documentation lead to a file, anchors to a place in it.

``python docs/_ext/links.py docs/_build`` exits with 1 if one does not. The theme's own links are checked too, and those
that autodoc makes. A build that ran nothing (``-D cells_run=0``) has no figures and no notebooks: ``--without-figures``
takes addresses below ``figures/`` as they are.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MADE = "figures"
"""Folder of what a build makes when it runs the pages; what anchors mean in these files is their own affair."""


class Page(HTMLParser):
    """The addresses that a page names, and the places in it that others may name."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.addresses: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the name of a tag."""
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")
            elif name in {"href", "src"} and value is not None:
                self.addresses.append(value)


def broken(folder: Path, *, with_figures: bool = True) -> list[str]:
    """A line for each address of the pages in a folder that leads nowhere."""
    apart = {"_static", MADE}
    ours = (path for path in sorted(folder.rglob("*.html")) if not apart & {*path.relative_to(folder).parts})
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in ours}
    found = []
    for path, page in pages.items():
        for address in dict.fromkeys(page.addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not with_figures and MADE in Path(parts.path).parts:
                continue
            if target.is_dir() or not target.exists():
                found.append(f"{path.relative_to(folder.resolve())}: no file {address}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                found.append(f"{path.relative_to(folder.resolve())}: no place {address}")
    return found


def main(folder: str, *options: str) -> int:
    """Check a folder; the exit status."""
    found = broken(Path(folder), with_figures="--without-figures" not in options)
    print("\n".join(found) or "all links of the pages lead somewhere")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
