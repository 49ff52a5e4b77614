"""Files of a sweep's folder: arrays that are replaced as a whole, and what a killed process left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bulkedge.support.errors import StoreError
from bulkedge.support.files import remove_folder

RESULTS, FAILURES, DRAFTS = "results.zarr", "failures.json", "drafts"
MANIFEST = "zarr.json"
NEW, OLD = ".new", ".old"


def clear_drafts(folder: Path) -> None:
    """Finish or undo what a killed process was about to rename."""
    for partial in (folder / RESULTS).rglob("*.partial"):
        partial.unlink()
    _finish_replacements(folder)


def _finish_replacements(folder: Path) -> None:
    results, drafts = folder / RESULTS, folder / DRAFTS
    if drafts.is_symlink():
        drafts.unlink()
    if drafts.is_dir():
        for old in drafts.glob(f"*{OLD}"):
            name = old.name.removesuffix(OLD)
            new = drafts / f"{name}{NEW}"
            if not (results / name).exists():  # the old one is moved away only when the new one is complete
                (new if new.exists() else old).rename(results / name)
        remove_folder(drafts)


@contextmanager
def replacement(folder: Path, name: str) -> Iterator[Path]:
    """A path at which to build the successor of an array; it takes the array's place when all is well."""
    _finish_replacements(folder)
    drafts = folder / DRAFTS
    drafts.mkdir()
    new, old, place = drafts / f"{name}{NEW}", drafts / f"{name}{OLD}", folder / RESULTS / name
    yield new
    place.rename(old)
    new.rename(place)
    remove_folder(drafts)


def require_manifest(folder: Path) -> bool:
    """Whether the folder has a store; one that lost its manifest is refused: nobody knows whose numbers it holds."""
    results = folder / RESULTS
    if (results / MANIFEST).exists():
        return True
    if results.exists() and any(path.is_file() for path in results.rglob("*")):
        raise StoreError(
            f"{results} has lost its {MANIFEST}, which says what sweep its numbers belong to; "
            "put it back from a copy, or choose another folder"
        )
    return False
