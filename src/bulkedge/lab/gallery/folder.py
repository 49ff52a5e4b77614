"""A folder of reproduced studies: what is in it, how a result gets into it, and the page that shows it all.

Every study has a folder of its name, which holds all that the page says of it: ``figure.png``, ``figure.pdf``,
``data.zarr`` and ``record.json``. It is written under a name of its own and renamed when it is complete, so that a
process that is stopped at any moment leaves the results it found or the ones it finished, and nothing between them.
``claims.json``, ``index.html`` and ``papers.html`` are made from the records, whichever runs these are from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import xarray as xr

from bulkedge.lab.studies.claims import Claim
from bulkedge.support.errors import StoreError
from bulkedge.support.files import DRAFT, make_draft, remove_folder, replace_file, seal, to_json, unseal, write_zarr
from bulkedge.version import __version__


@cache
def sources() -> str:
    """A digest of the package's Python files: between releases, the version alone does not say which code ran."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Origin:
    """All that the numbers of a study depend on: two results of the same origin are the same.

    Parameters are as JSON has them, lists for tuples.

    >>> from dataclasses import replace
    >>> one = Origin("laws/bulk", {"size": 100}, seed=0, version="1.0", sources="")
    >>> one.differences(replace(one, seed=1))
    ['seed']
    """

    study: str
    parameters: dict[str, Any]
    seed: int
    version: str
    sources: str

    def differences(self, other: Origin) -> list[str]:
        """In which fields two origins differ."""
        found = [key for key, value in asdict(self).items() if value != getattr(other, key)]
        # other versions have other sources
        return [key for key in found if key != "sources" or "version" not in found]


@dataclass(frozen=True)
class Reproduction:
    """A study that was run, as its record has it; its figure and its dataset are in its folder.

    >>> origin = Origin("laws/bulk", {"size": 100}, seed=0, version="1.0", sources="")
    >>> result = Reproduction(origin, "The bulk.", "bulkedge run laws/bulk", 1.0, 640, 480, claims=(), chosen={})
    >>> result.name, result.paper
    ('laws/bulk', 'laws')

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
    width, height : int
        Size of the figure on the page, in pixels.
    claims : tuple of Claim
        What it says of the paper's statements.
    chosen : dict of str to str
        Who chose the value of each parameter, as :meth:`bulkedge.lab.studies.base.Study.chosen` says.
    caption : str
        What the figure shows, and what to look at; empty in records of versions before captions.
    """

    origin: Origin
    summary: str
    command: str
    seconds: float
    width: int
    height: int
    claims: tuple[Claim, ...]
    chosen: dict[str, str]
    caption: str = ""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.origin.study

    @property
    def paper(self) -> str:
        """The folder that the study is in, which is the paper it is about."""
        return self.name.split("/")[0]

    @property
    def outdated(self) -> str:
        """What other code made it, or nothing if it was this."""
        if self.origin.version != __version__:
            return f"version {self.origin.version}"
        return f"other sources of version {__version__}" if self.origin.sources != sources() else ""

    def record(self) -> dict[str, Any]:
        """All of it, for ``record.json``."""
        claims = [claim.record() for claim in self.claims]
        names = ("summary", "command", "seconds", "width", "height", "chosen", "caption")
        own = {key: getattr(self, key) for key in names}
        return asdict(self.origin) | own | {"claims": claims}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Read what :meth:`record` wrote; KeyError, TypeError and ValueError tell of one that was not."""
        claims = tuple(Claim.from_record(each) for each in record["claims"])
        names = "study", "version", "sources", "summary", "command"
        study, version, code, summary, command = (str(record[key]) for key in names)
        origin = Origin(study, dict(record["parameters"]), int(record["seed"]), version, code)
        seconds, width, height = float(record["seconds"]), int(record["width"]), int(record["height"])
        chosen = {name: str(record["chosen"][name]) for name in origin.parameters}
        caption = str(record.get("caption", ""))
        return cls(origin, summary, command, seconds, width, height, claims, chosen, caption)

    def shown_claims(self) -> list[dict[str, Any]]:
        """The claims as ``claims.json`` has them, each with what made it."""
        made_by = {"study": self.name, "seed": self.origin.seed, "version": self.origin.version}
        return [claim.record() | made_by for claim in self.claims]


RECORD, IMAGE, DOCUMENT, DATA = "record.json", "figure.png", "figure.pdf", "data.zarr"


@dataclass
class Gallery:
    """The results in a folder, by their study's name; made by :meth:`opened`, under the folder's lock."""

    root: Path
    results: dict[str, Reproduction] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @classmethod
    def opened(cls, root: Path) -> Self:
        """Read the records of a folder, after finishing or removing what a stopped process left in it."""
        gallery = cls(root)
        _tidy(root)
        for folder in _folders(root):
            name = folder.relative_to(root).as_posix()
            try:
                gallery.results[name] = read(folder, name)
            except StoreError as error:
                gallery.damaged[name] = str(error)
        return gallery

    def add(self, result: Reproduction, data: xr.Dataset, image: bytes, document: bytes) -> None:
        """Write a result, in place of what was there of the same study."""
        folder = self.root / result.name
        draft = make_draft(folder)
        replace_file(draft / IMAGE, image)
        replace_file(draft / DOCUMENT, document)
        write_zarr(data, draft / DATA)
        # the record comes last, in one step: a draft that has one is complete
        record = json.loads(to_json(result.record(), exact=True))
        seal(draft, RECORD, record | {"files": [IMAGE, DOCUMENT, DATA]})
        _put(draft, folder)
        self.damaged.pop(result.name, None)
        self.results[result.name] = result


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

    Examples
    --------
    >>> read(Path("out/reproduced"), "laws/bulk")                      # doctest: +SKIP
    """
    record = unseal(folder, RECORD)
    try:
        result = Reproduction.from_record(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{RECORD} is not readable: {type(error).__name__}: {error}") from error
    if result.name != name:
        raise StoreError(f"{RECORD} is that of {result.name}")
    return result


def _folders(root: Path) -> list[Path]:
    """Folders that hold a result, or a part of one: ``paper/figure``, or one name for studies from elsewhere."""
    found = (path.parent for name in (RECORD, IMAGE) for depth in ("*", "*/*") for path in root.glob(f"{depth}/{name}"))
    return sorted({each for each in found if not any(part.startswith(".") for part in each.relative_to(root).parts)})


def _put(draft: Path, folder: Path) -> None:
    """Let a complete draft take the place of a folder; files that others laid into that folder move along."""
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
