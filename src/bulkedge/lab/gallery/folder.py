"""A folder of reproduced studies: what is in it, how a result gets into it, and the page that shows it all.

Every study has a folder of its name, which holds all that the page says of it: ``figure.png``, ``figure.pdf``,
``data.zarr`` and ``record.json``. It is written under a name of its own and renamed when it is complete, so that a
process that is stopped at any moment leaves the results it found or the ones it finished, and nothing between them.
``claims.json``, ``index.html`` and ``papers.html`` are made from the records, whichever runs these are from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import xarray as xr

from bulkedge.lab.gallery.page import claims_page, in_order, papers_page
from bulkedge.lab.gallery.record import Reproduction
from bulkedge.support.errors import StoreError
from bulkedge.support.files import remove_folder, replace_text
from bulkedge.support.records import to_json

RECORD, IMAGE, DOCUMENT, DATA = "record.json", "figure.png", "figure.pdf", "data.zarr"
SCAN = "scan.html"
"""The page of ``bulkedge scan``, which the gallery's page links where it lies in the folder."""
DRAFT = ".bulkedge-draft"
"""How the names of folders end that are still being written."""


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
        remove_folder(draft)
        draft.mkdir(parents=True)
        (draft / IMAGE).write_bytes(image)
        (draft / DOCUMENT).write_bytes(document)
        # Zarr has a type for strings, but not for NumPy's strings of fixed length
        labels = {name: each.astype(object) for name, each in data.coords.items() if each.dtype.kind == "U"}
        data.assign_coords(labels).to_zarr(draft / DATA, mode="w", zarr_format=3, consolidated=False)
        complete = replace(result, digest=_digest(draft))
        # the record comes last, in one step: a draft that has one is complete
        replace_text(draft / RECORD, to_json(complete.record(), indent=1, exact=True))
        _put(draft, folder)
        self.damaged.pop(result.name, None)
        self.results[result.name] = complete
        self.write_page()
        return complete

    def write_page(self) -> None:
        """Write ``claims.json``, ``index.html`` and ``papers.html`` for all results, paper by paper."""
        results = in_order(self.results.values())
        if not results:
            return
        claims = [claim for each in results for claim in each.shown_claims()]
        replace_text(self.root / "claims.json", to_json(claims, indent=1))
        replace_text(self.root / "papers.html", papers_page(results))
        scan = SCAN if (self.root / SCAN).is_file() else ""
        replace_text(self.root / "index.html", claims_page(results, scan=scan))


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
        remove_folder(folder)
    draft.rename(folder)


def _tidy(root: Path) -> None:
    """Finish what a stopped process had all but finished, and remove the rest of what it left."""
    for draft in [*root.glob(f".*{DRAFT}"), *root.glob(f"*/.*{DRAFT}")]:
        if (draft / RECORD).exists():
            _put(draft, draft.with_name(draft.name.removeprefix(".").removesuffix(DRAFT)))
        else:
            remove_folder(draft)
