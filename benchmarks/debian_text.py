"""Plain text out of Debian's documentation packages, to train a small decoder on; the text is never committed.

Prose and code apart, a file for each package and sort::

    apt-get download linux-doc-6.1 postgresql-doc-15 python3.11-doc debian-handbook dict-gcide
    mkdir raw
    for package in *.deb; do dpkg-deb -x $package raw/${package%%_*}; done
    python -m benchmarks.debian_text raw text
"""

from __future__ import annotations

import gzip
import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bulkedge.support.files import replace_file

SOURCES = {
    "linux.prose": ("linux-doc-*", ("*.rst.gz",)),
    "linux.code": ("linux-doc-*", ("*.yaml.gz", "*.py.gz", "*.sh.gz", "*.litmus.gz")),
    "linux_bindings.prose": ("linux-doc-*", ("bindings/**/*.txt.gz",)),
    "python.prose": ("python3*-doc", ("_sources/**/*.rst.txt",)),
    "postgresql.prose": ("postgresql-doc-*", ("*.html",)),
    "handbook.prose": ("debian-handbook", ("en-US/*.html",)),
    "dictionary.prose": ("dict-gcide", ("*.dict.dz",)),
}
"""Name of the text, its package, and its files; ``code`` are configuration, schemas and scripts."""
BETWEEN = "\n\f\n"  # stands between two documents


def documents(root: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    """Texts of some files, without markup and without those that stand there twice."""
    seen: set[str] = set()
    paths = sorted({path for pattern in patterns for path in root.rglob(pattern) if path.is_file()})
    for path in paths:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix in {".gz", ".dz"} else data).decode("utf-8", "replace")
        if path.suffix == ".html":
            text = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", "", text)
            text = html.unescape(re.sub(r"<[^>]*>", "", text))
        text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()
        if len(text) > 200 and text not in seen:
            seen.add(text)
            yield text


def main() -> None:
    raw, target = map(Path, sys.argv[1:3])
    target.mkdir(parents=True, exist_ok=True)
    for name, (package, patterns) in SOURCES.items():
        found = [text for root in sorted(raw.glob(package)) for text in documents(root, patterns)]
        replace_file(target / f"{name}.txt", BETWEEN.join(found))
        print(f"{name}: {len(found)} documents, {sum(map(len, found)) / 1e6:.1f}M characters", flush=True)


if __name__ == "__main__":
    main()
