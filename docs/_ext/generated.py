"""Pages, or parts of pages, that are written from the package when the documentation is built: parameters, gallery.

A page has a line ``<!-- parameters -->``, ``<!-- gallery -->`` or ``<!-- operator_gpu -->`` where the part goes; the
last is of a measurement on a GPU, which is made elsewhere and kept in ``docs/benchmarks``.
"""

import inspect
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path

import bulkedge
from bulkedge.support.domains import Parametric, parameters
from bulkedge.lab.studies.base import Study, studies

REPRODUCED = Path(__file__).parents[1] / "figures" / "reproduced"
"""Where ``make docs`` has the studies reproduced, at their quick sizes."""
OPERATOR_GPU = Path(__file__).parents[1] / "benchmarks" / "operator_gpu.json"
"""What ``python -m benchmarks.operator_gpu --json`` wrote."""
PAPERS = {
    "laws": "What every paper stands on",
    "equivalence": "Gaussian equivalence",
    "recovery": "Signal recovery",
    "width": "Infinite width",
    "propagation": "Rank collapse",
    "heads": "Real heads (ours)",
}


def parameter_tables() -> str:
    """A table of the parameters of every public class that declares some, in the order of the façade."""
    found = []
    for name in bulkedge.__all__:
        cls = getattr(bulkedge, name)
        if inspect.isclass(cls) and issubclass(cls, Parametric):
            rows = [
                f"| `{each.name}` | {each.doc} | {_cell(each.domain)} | {_default(each.default)} |"
                for each in parameters(cls)
            ]
            summary = (inspect.getdoc(cls) or "").splitlines()[0].replace("``", "`")
            found += [
                f"## {name}",
                "",
                summary,
                "",
                "| name | meaning | domain | default |",
                "|---|---|---|---|",
                *rows,
                "",
            ]
    return "\n".join(found)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def _default(value: object) -> str:
    return "required" if value is MISSING else f"`{value!r}`" if not callable(value) else ""


def gallery() -> str:
    """A figure for each study that was reproduced, under the paper that it is of; the others are named."""
    found = []
    for paper, title in PAPERS.items():
        known = {name: study for name, study in studies().items() if name.split("/")[0] == paper}
        there = [name for name in known if (REPRODUCED / name / "figure.png").exists()]
        found += [f"## {title}", ""]
        if there:
            found += [":::::{container} gallery", *(_thumbnail(name, known[name]) for name in there), ":::::", ""]
        if left := sorted(set(known) - set(there)):
            found += [f"Not drawn in this build: {', '.join(f'`{name}`' for name in left)}.", ""]
    return "\n".join(found)


def _thumbnail(name: str, study: type[Study]) -> str:
    shows = study.summary().replace("``", "")
    place, under = REPRODUCED / name, f"/figures/reproduced/{name}"
    # unpacked where the page's lines run, it lies where they look for it
    shutil.make_archive(str(place / "data"), "zip", REPRODUCED, f"{name}/data.zarr")
    words = f"**{name}**: {study.caption} {{download}}`Its data <{under}/data.zip>`."
    return f"::::{{figure}} {under}/figure.png\n:alt: {shows}\n:width: 100%\n\n{words}\n::::\n"


def operator_gpu() -> str:
    """Spectra of operators on a GPU, as far as they were measured: where and when, a table, or that there is none."""
    if not OPERATOR_GPU.exists():
        return "*It has not been measured for this version: there is no table of it here.*"
    sys.path.append(str(OPERATOR_GPU.parents[2]))
    from benchmarks.operator_gpu_page import spectra

    numbers = json.loads(OPERATOR_GPU.read_text())
    place = f"{numbers['date']} on one {numbers['device']}, torch {numbers['torch']}"
    where = f"*Measured on {place}; it is not run again here.*"
    longest = max(each["tokens"] for each in numbers["spectra"])
    missing = "" if longest >= 2**20 else "\nA million tokens were not among what was measured then.\n"
    return f"{where}\n\n{spectra(numbers['spectra']).markdown().partition(chr(10))[2]}{missing}"


PARTS: dict[str, Callable[[], str]] = {
    "<!-- parameters -->": parameter_tables,
    "<!-- gallery -->": gallery,
    "<!-- operator_gpu -->": operator_gpu,
}


def filled(text: str) -> str:
    """A page with its parts written."""
    for mark, part in PARTS.items():
        if mark in text:
            text = text.replace(mark, part())
    return text
