"""Run studies and write what people look at: datasets, figures, claims, and one page that holds them all."""

from __future__ import annotations

import base64
import io
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr
from jinja2 import Environment, PackageLoader

from bulkedge.domains import parameters
from bulkedge.records import written
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim
from bulkedge.version import __version__

DPI = 200


@dataclass(frozen=True)
class Reproduction:
    """A study that was run: its dataset, claims and figure (as PNG and PDF), and the seconds it took."""

    study: Study
    data: xr.Dataset
    claims: tuple[Claim, ...]
    image: bytes
    document: bytes
    width: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(claim.holds for claim in self.claims)


def reproduce(
    studies: Iterable[Study], folder: str | Path, seed: int = 0, done: Callable[[Reproduction], None] | None = None
) -> list[Reproduction]:
    """Run studies and write datasets, figures, ``claims.json`` and ``index.html`` into a folder.

    Parameters
    ----------
    studies : iterable of Study
        What to run.
    folder : path
        Where to write; each study has a folder of its name in it. Earlier results of the same studies are replaced.
    seed : int
        Seed of every study.
    done : callable, optional
        Called with each study when it is done.
    """
    root, results = Path(folder), []
    for study in studies:
        result = _run(study, seed)
        _write(result, root / study.name())
        results.append(result)
        # written each time, so that an interrupted run leaves a page of what it finished
        _write_page(results, root, seed)
        if done is not None:
            done(result)
    return results


def _run(study: Study, seed: int) -> Reproduction:
    start = time.perf_counter()
    data = study.simulate(seed)
    figure, image, document = study.plot(data), io.BytesIO(), io.BytesIO()
    figure.savefig(image, format="png", dpi=DPI)
    figure.savefig(document, format="pdf", metadata={"CreationDate": None})
    width = round(115 * figure.get_size_inches()[0])
    claims = tuple(study.claims(data))
    seconds = time.perf_counter() - start
    return Reproduction(study, data, claims, image.getvalue(), document.getvalue(), width, seconds)


def _write(result: Reproduction, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figure.png").write_bytes(result.image)
    (folder / "figure.pdf").write_bytes(result.document)
    shutil.rmtree(folder / "data.zarr", ignore_errors=True)
    # Zarr has a type for strings, but not for NumPy's strings of fixed length
    labels = {name: each.astype(object) for name, each in result.data.coords.items() if each.dtype.kind == "U"}
    data = result.data.assign_coords(labels)
    data.to_zarr(folder / "data.zarr", mode="w", zarr_format=3, consolidated=False)


def _write_page(results: list[Reproduction], root: Path, seed: int) -> None:
    claims = [claim.record() | {"study": each.study.name()} for each in results for claim in each.claims]
    (root / "claims.json").write_text(written(claims, indent=1), encoding="utf-8")
    page = Environment(loader=PackageLoader("bulkedge"), autoescape=True).get_template("gallery.html")
    text = page.render(
        title="reproduced claims" if len(results) > 1 else results[0].study.name(),
        version=__version__,
        seed=seed,
        total=len(claims),
        failed=sum(not claim["holds"] for claim in claims),
        results=[_shown(each, seed) for each in results],
    )
    (root / "index.html").write_text(text, encoding="utf-8")


def _shown(result: Reproduction, seed: int) -> dict[str, Any]:
    return {
        "name": result.study.name(),
        "summary": result.study.summary(),
        "image": base64.b64encode(result.image).decode(),
        "width": result.width,
        "claims": result.claims,
        "command": command_for(result.study, seed),
        "seconds": result.seconds,
    }


def command_for(study: Study, seed: int) -> str:
    """The command that runs a study as it is."""
    options = []
    for each in parameters(type(study)):
        value = getattr(study, each.name)
        if value != each.default:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            options.append(f"--{each.name.replace('_', '-')} {text}")
    return " ".join(["bulkedge reproduce", study.name(), *options, f"--seed {seed}"])
