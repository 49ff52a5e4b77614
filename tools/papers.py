"""Write what became of every item of the papers into the documentation, from a folder of reproduced studies.

bulkedge reproduce --out out/demo && python tools/papers.py out/demo          # writes docs/papers.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bulkedge.errors import StoreError
from bulkedge.files import locked, replace_text
from bulkedge.gallery import Gallery
from bulkedge.gallery.page import in_order
from bulkedge.gallery.papers import markdown

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "papers.md"


def write(folder: Path, document: Path = DOCUMENT) -> None:
    """Read the records of a folder and write the document."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; bulkedge reproduce --out {folder} makes one")
    with locked(folder):
        gallery = Gallery.opened(folder)
    if gallery.damaged or not gallery.results:
        raise StoreError(f"{folder} holds no results, or damaged ones: {', '.join(gallery.damaged) or 'none'}")
    replace_text(document, markdown(in_order(gallery.results.values())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what bulkedge reproduce --out wrote")
    write(parser.parse_args().folder)
