"""What a build makes before it reads the pages: figures of the studies, and the outputs of pages that run.

Both are kept in ``docs/figures`` with a digest of the package and of what made them, so that a second build makes only
what has changed. Pages run in processes of their own, two at a time. The explorer's course and rooms, which
``docs/explore.md`` shows, are made in the same way and put beside the pages.

``sphinx-build -D cells_run=0`` makes nothing of this, in seconds: pages have no outputs, and neither figures nor
notebooks are looked for. Everything else is checked as in a whole build.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import bulkedge
import cells
import figures
import generated
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

HERE = Path(__file__).parent
DOCS = HERE.parent
FIGURES = DOCS / "figures"
CELLS = FIGURES / "cells"
PROCESSES = 2


def digest(*texts: str) -> str:
    """A fingerprint of the package's sources and of further texts."""
    found = hashlib.sha256()
    for path in sorted(Path(bulkedge.__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    for text in texts:
        found.update(text.encode())
    return found.hexdigest()


def without_outputs(_: Sphinx, config: Config) -> None:
    """Where nothing runs, do not complain of what would have been made; ``links.py`` looks for all other files."""
    if not config.cells_run:
        config.suppress_warnings = [*config.suppress_warnings, "image.not_readable", "download.not_readable"]


def draw_figures(app: Sphinx) -> None:
    """Draw the figures, unless they are those of this very package."""
    if not app.config.cells_run:
        return
    mark, made_by = FIGURES / "made_by.txt", digest((HERE / "figures.py").read_text())
    if not mark.exists() or mark.read_text() != made_by:
        FIGURES.mkdir(exist_ok=True)
        figures.draw(FIGURES)
        mark.write_text(made_by)


def running() -> Iterator[tuple[str, Path]]:
    """Pages with cells: their names in Sphinx, and their files."""
    for path in sorted(DOCS.rglob("*.md")):
        if "_build" not in path.parts and cells.CELL.search(path.read_text()):
            yield path.relative_to(DOCS).with_suffix("").as_posix(), path


def run_pages(app: Sphinx) -> None:
    """Run the pages that have changed, and write their figures and notebooks."""
    if not app.config.cells_run:
        return
    CELLS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        faults = list(filter(None, pool.map(prepare, (path for _, path in running()))))
    if faults:
        raise ExtensionError("\n".join(faults))


def prepare(path: Path) -> str:
    """Run a page, or read what it gave before; what went wrong, in words."""
    text, name = path.read_text(), path.stem
    kept = path.parent / "cached" / f"{name}.json"
    if "cached" not in cells.front(text):
        kept, mark = CELLS / f"{name}.json", CELLS / f"{name}.txt"
        made_by = digest(text, (HERE / "cells.py").read_text())
        if not (kept.exists() and mark.exists() and mark.read_text() == made_by):
            command = [sys.executable, HERE / "cells.py", path, kept]
            with TemporaryDirectory() as folder:  # for what a page writes
                done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
            if done.returncode:
                return done.stderr
            mark.write_text(made_by)
    found = json.loads(kept.read_text())
    if found["codes"] != cells.codes(text):
        return f"{path}: its outputs are those of other code; run it again, as docs/_ext/cells.py says"
    drawn = [each["svg"] for outputs in found["outputs"] for each in outputs if "svg" in each]
    for number, svg in enumerate(drawn, 1):
        (CELLS / f"{name}-{number}.svg").write_text(svg)
    (CELLS / f"{name}.ipynb").write_text(json.dumps(cells.notebook(text, found["outputs"]), ensure_ascii=False))
    return ""


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the outputs into a page that runs, with a line about it under its title; write what is generated."""
    source[0] = generated.filled(source[0])
    path = Path(app.srcdir) / f"{page}.md"
    if not path.exists() or not cells.CELL.search(source[0]):
        return
    when = cells.front(source[0]).get("cached")
    kept = path.parent / "cached" / f"{path.stem}.json" if when else CELLS / f"{path.stem}.json"
    if app.config.cells_run or when:
        outputs = json.loads(kept.read_text())["outputs"]
    else:
        outputs = [[] for _ in cells.codes(source[0])]
    told = f"Outputs are of {when}." if when else "Outputs are those of this build."
    opens = (
        f" Open it [as a notebook](/figures/cells/{path.stem}.ipynb), in Jupyter or in Colab (File, Upload notebook)."
    )
    told += opens if app.config.cells_run else ""
    title, _, rest = cells.markdown(source[0], outputs, path.stem).lstrip().partition("\n")
    source[0] = f"{title}\n\n*{told}*\n{rest}"


def outdated(*_: object) -> list[str]:
    """Pages that Sphinx has to read again although their files are the same: their content comes from elsewhere."""
    parts = [path for path in DOCS.glob("*.md") if any(mark in path.read_text() for mark in generated.PARTS)]
    return [name for name, _ in running()] + [path.stem for path in parts]


def export_course(app: Sphinx, error: Exception | None) -> None:
    """Put the explorer as one file beside the pages: the course and the theory of its rooms, which need no server."""
    if error is not None or not app.config.cells_run or app.builder.format != "html":
        return
    folder = Path(bulkedge.__file__).parent / "lab" / "explore"
    parts = sorted([*folder.glob("templates/*"), *folder.glob("assets/*.css")])
    kept, mark, made_by = FIGURES / "course.html", FIGURES / "course.txt", digest(*map(Path.read_text, parts))
    if not (kept.exists() and mark.exists() and mark.read_text() == made_by):
        from bulkedge.lab.explore.export import export

        export(kept)
        mark.write_text(made_by)
    target = Path(app.outdir) / "figures" / "course.html"
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(kept, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of all this."""
    app.add_config_value("cells_run", default=True, rebuild="env")
    app.connect("config-inited", without_outputs)
    app.connect("build-finished", export_course)
    app.connect("builder-inited", draw_figures)
    app.connect("builder-inited", run_pages)
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
