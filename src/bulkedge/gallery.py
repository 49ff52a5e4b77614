"""A folder of reproduced studies: what is in it, how a result gets into it, and the page that shows it all.

Every study has a folder of its name, which holds all that the page says of it: ``figure.png``, ``figure.pdf``,
``data.zarr`` and ``record.json``. It is written under a name of its own and renamed when it is complete, so that a
process that is stopped at any moment leaves the results it found or the ones it finished, and nothing between them.
``claims.json`` and ``index.html`` are made from the records, whichever runs these are from.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import xarray as xr
from jinja2 import Environment, PackageLoader

from bulkedge.errors import StoreError
from bulkedge.files import replace_text
from bulkedge.records import written
from bulkedge.studies.claims import Claim, Verdict
from bulkedge.version import __version__

RECORD, IMAGE, DOCUMENT, DATA = "record.json", "figure.png", "figure.pdf", "data.zarr"
DRAFT = ".bulkedge-draft"
"""How the names of folders end that are still being written."""


@cache
def sources() -> str:
    """A digest of the package's Python files: between releases, the version alone does not tell which code ran."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Origin:
    """All that the numbers of a study depend on: two results of the same origin are the same.

    Parameters are as JSON has them, lists for tuples.
    """

    study: str
    parameters: dict[str, Any]
    seed: int
    version: str
    sources: str

    def differences(self, other: Origin) -> list[str]:
        """In what two origins differ, in words.

        Parameters
        ----------
        other : Origin
            The origin of another result of the same study, as a rule.

        Returns
        -------
        list of str
            Among ``study``, ``parameters``, ``seed``, ``version`` and ``sources``; sources are not named beside the
            version, with which they always differ.
        """
        found = [key for key, value in asdict(self).items() if value != getattr(other, key)]
        # other versions have other sources
        return [key for key in found if key != "sources" or "version" not in found]


@dataclass(frozen=True)
class Reproduction:
    """A study that was run, as its record tells it; its figure and its dataset are in its folder.

    Attributes
    ----------
    origin : Origin
        Study, parameters, seed and code.
    summary : str
        What the study shows.
    command : str
        The command that runs it again.
    seconds : float
        How long it took.
    width : int
        Width of the figure on the page, in pixels.
    claims : tuple of Claim
        What it says of the paper's statements.
    digest : str
        SHA-256 of its files, which tells whether they are still those that were written.
    """

    origin: Origin
    summary: str
    command: str
    seconds: float
    width: int
    claims: tuple[Claim, ...]
    digest: str = ""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.origin.study

    def count(self, verdict: Verdict) -> int:
        """How many claims have that verdict.

        Parameters
        ----------
        verdict : {"holds", "fails", "undecided"}
            The verdict.

        Returns
        -------
        int
            Their number.
        """
        return sum(claim.verdict == verdict for claim in self.claims)

    @property
    def outdated(self) -> str:
        """What other code made it, or nothing if it was this."""
        if self.origin.version != __version__:
            return f"version {self.origin.version}"
        return f"other sources of version {__version__}" if self.origin.sources != sources() else ""

    def record(self) -> dict[str, Any]:
        """All of it, for ``record.json``."""
        claims = [claim.record() for claim in self.claims]
        own = {key: getattr(self, key) for key in ("summary", "command", "seconds", "width", "digest")}
        return asdict(self.origin) | own | {"claims": claims}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Read what :meth:`record` wrote; KeyError, TypeError and ValueError tell of one that was not.

        Parameters
        ----------
        record : dict
            What ``json.loads`` made of a ``record.json``.

        Returns
        -------
        Reproduction
            The result; fields of claims that this version does not know are left aside.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is not a record.
        """
        claims = tuple(Claim.from_record(each) for each in record["claims"])
        study, version, code, summary, command, digest = (
            str(record[key]) for key in ("study", "version", "sources", "summary", "command", "digest")
        )
        origin = Origin(study, dict(record["parameters"]), int(record["seed"]), version, code)
        return cls(origin, summary, command, float(record["seconds"]), int(record["width"]), claims, digest)

    def shown_claims(self) -> list[dict[str, Any]]:
        """The claims as ``claims.json`` has them, each with what made it."""
        made_by = {"study": self.name, "seed": self.origin.seed, "version": self.origin.version}
        return [claim.record() | made_by for claim in self.claims]


@dataclass
class Gallery:
    """The results in a folder, by their study's name; made by :meth:`opened`, under the folder's lock."""

    root: Path
    results: dict[str, Reproduction] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @classmethod
    def opened(cls, root: Path) -> Self:
        """Read the records of a folder, after finishing or removing what a stopped process left in it.

        Parameters
        ----------
        root : Path
            The folder of the gallery, locked by the caller; it may be empty.

        Returns
        -------
        Gallery
            ``results`` has the studies that are whole, ``damaged`` the reasons why others are not.
        """
        gallery = cls(root)
        _tidy(root)
        for folder in _folders(root):
            name = folder.relative_to(root).as_posix()
            try:
                gallery.results[name] = read(folder, name)
            except StoreError as error:
                gallery.damaged[name] = str(error)
        return gallery

    def add(self, result: Reproduction, data: xr.Dataset, image: bytes, document: bytes) -> Reproduction:
        """Write a result, in place of what was there of the same study, and the page.

        Parameters
        ----------
        result : Reproduction
            What to write of the run; its digest is computed here.
        data : xarray.Dataset
            The dataset of the study.
        image : bytes
            Its figure as PNG.
        document : bytes
            Its figure as PDF.

        Returns
        -------
        Reproduction
            The result, with the digest of its files.
        """
        folder = self.root / result.name
        draft = folder.with_name(f".{folder.name}{DRAFT}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        (draft / IMAGE).write_bytes(image)
        (draft / DOCUMENT).write_bytes(document)
        # Zarr has a type for strings, but not for NumPy's strings of fixed length
        labels = {name: each.astype(object) for name, each in data.coords.items() if each.dtype.kind == "U"}
        data.assign_coords(labels).to_zarr(draft / DATA, mode="w", zarr_format=3, consolidated=False)
        complete = replace(result, digest=_digest(draft))
        # the record comes last, in one step: a draft that has one is complete
        replace_text(draft / RECORD, written(complete.record(), indent=1, exact=True))
        _put(draft, folder)
        self.damaged.pop(result.name, None)
        self.results[result.name] = complete
        self.write_page()
        return complete

    def write_page(self) -> None:
        """Write ``claims.json`` and ``index.html`` for all results, in the order of their names."""
        results = [self.results[name] for name in sorted(self.results)]
        if not results:
            return
        claims = [claim for each in results for claim in each.shown_claims()]
        replace_text(self.root / "claims.json", written(claims, indent=1))
        page = Environment(loader=PackageLoader("bulkedge"), autoescape=True).get_template("gallery.html")
        text = page.render(
            title="reproduced claims" if len(results) > 1 else results[0].name,
            version=__version__,
            seeds=sorted({each.origin.seed for each in results}),
            total=len(claims),
            failed=sum(each.count("fails") for each in results),
            outdated=sum(bool(each.outdated) for each in results),
            results=[(each, self._image(each)) for each in results],
        )
        replace_text(self.root / "index.html", text)

    def _image(self, result: Reproduction) -> str:
        return base64.b64encode((self.root / result.name / IMAGE).read_bytes()).decode()


def read(folder: Path, name: str) -> Reproduction:
    """Read the result in a study's folder.

    Parameters
    ----------
    folder : Path
        The study's folder.
    name : str
        The study that should be in it: ``"laws/bulk"``.

    Returns
    -------
    Reproduction
        What its record says.

    Raises
    ------
    StoreError
        If the record is not there or not readable, is another study's, or other files than its own lie beside it.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        result = Reproduction.from_record(record)
        intact = _digest(folder) == result.digest
    except FileNotFoundError as error:
        raise StoreError(f"{Path(error.filename).name} is missing") from error
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise StoreError(f"{RECORD} is not readable: {type(error).__name__}: {error}") from error
    if result.name != name:
        raise StoreError(f"{RECORD} is that of {result.name}")
    if not intact:
        raise StoreError("its files are not those that were written")
    return result


def _digest(folder: Path) -> str:
    """SHA-256 of the files that were written for a study, names and contents; others may lie beside them."""
    digest = hashlib.sha256()
    inside = sorted(path for path in (folder / DATA).rglob("*") if path.is_file())
    for path in (folder / IMAGE, folder / DOCUMENT, *inside):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _folders(root: Path) -> list[Path]:
    """Folders that hold a result, or a part of one: ``paper/figure``, or one name for studies from elsewhere."""
    found = (path.parent for name in (RECORD, IMAGE) for depth in ("*", "*/*") for path in root.glob(f"{depth}/{name}"))
    return sorted({each for each in found if not any(part.startswith(".") for part in each.relative_to(root).parts)})


def _put(draft: Path, folder: Path) -> None:
    """Let a complete draft take the place of a folder; files that others laid into that folder move along.

    If the process ends in here, the draft is still complete, and :func:`_tidy` does the same again.
    """
    if folder.exists():
        for path in folder.iterdir():
            if path.name not in (RECORD, IMAGE, DOCUMENT, DATA):
                path.rename(draft / path.name)
        shutil.rmtree(folder)
    draft.rename(folder)


def _tidy(root: Path) -> None:
    """Finish what a stopped process had all but finished, and remove the rest of what it left."""
    for draft in [*root.glob(f".*{DRAFT}"), *root.glob(f"*/.*{DRAFT}")]:
        if (draft / RECORD).exists():
            _put(draft, draft.with_name(draft.name.removeprefix(".").removesuffix(DRAFT)))
        else:
            shutil.rmtree(draft)
