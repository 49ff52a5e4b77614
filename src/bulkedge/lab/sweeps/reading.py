"""The results of a sweep, read: verified, labelled, and with no number of a cell that is not done."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from bulkedge.lab.sweeps.audit import CHECKED_BY, DONE, Audit, audited, read_group, unreadable
from bulkedge.lab.sweeps.files import FAILURES, RESULTS
from bulkedge.lab.sweeps.grid import FORMAT
from bulkedge.support.errors import StoreError

LOOKS, LOOK_SECONDS = 3, 0.2
"""A sweep that is running may move files while they are read: what looks damaged is looked at again."""


def open_sweep(folder: str | Path, *, verify: bool = True) -> xr.Dataset:
    """The results so far, labelled, nan where a cell is not done; ``status`` is 1 for done and 2 for failed.

    Parameters
    ----------
    folder : path
        The folder of the sweep.
    verify : bool
        Whether to read everything once and compare it with the checksums. Without it, opening is quick and damage
        goes unnoticed.

    Returns
    -------
    xarray.Dataset
        The axes of the grid and ``repetition`` are its first dimensions.

    Raises
    ------
    StoreError
        If there is no sweep, or it cannot be read, or cells do not match their checksums.
    """
    path = Path(folder)
    for look in range(LOOKS):
        try:
            return _opened(path, verify=verify)
        except (StoreError, FileNotFoundError):
            if look == LOOKS - 1 or not (path / RESULTS).exists():
                raise
            time.sleep(LOOK_SECONDS)
    raise AssertionError


def failures(folder: str | Path) -> dict[str, Any]:
    """The cells that raised, by their index: parameters, error and traceback.

    Parameters
    ----------
    folder : path
        The folder of the sweep.

    Returns
    -------
    dict of str to dict
        Keys are indices as JSON lists: ``"[0, 2, 1]"``.

    Raises
    ------
    StoreError
        If the record of failures cannot be read.
    """
    path = Path(folder) / FAILURES
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise StoreError(f"{path} is damaged ({found}); delete it: the cells that failed are then run again")
    return found


def _opened(path: Path, *, verify: bool) -> xr.Dataset:
    group = read_group(path, "r")
    with unreadable(path), warnings.catch_warnings():
        # a sweep that is still running has files that are not in place yet
        warnings.simplefilter("ignore", ZarrUserWarning)
        if dict(group.attrs["sweep"]).get("format") != FORMAT:  # type: ignore[arg-type]
            raise StoreError(f"{path} was not written by this version of bulkedge, which reads format {FORMAT}")
        audit = audited(path, group, failures(path)) if verify else Audit((), (), {})
        # what is stored are plain numbers: units such as "days" are not to make dates of them
        data = xr.open_zarr(path / RESULTS, consolidated=False, chunks=None, decode_cf=False)
        data = data.drop_vars("checksum")
    if audit.damaged:
        raise StoreError(
            f"{path / RESULTS} is damaged: {_named(data, audit.damaged)} not what was written. "
            "The command that made the sweep, run again, computes these cells anew"
        )
    if verify:  # labels of which no cell that is done can tell whether they are whole
        inner = {name for name in data.coords if name not in data["status"].dims}
        data = data.drop_vars(inner - audit.labels.keys())
    for variable in data.variables.values():
        variable.attrs.pop(CHECKED_BY, None)
    return _masked(data) if audit.unfinished else data


def _masked(data: xr.Dataset) -> xr.Dataset:
    """Without the numbers that a killed process left in cells that it did not finish."""
    done = data["status"] == DONE
    names = [name for name in data.data_vars if name != "status"]
    return data.assign({name: data[name].copy(data=_finished(data[name], done.values)) for name in names})


def _finished(variable: xr.DataArray, done: NDArray[np.bool_]) -> NDArray[Any]:
    """The numbers of the cells that are done; what is left of the others may not even be readable."""
    values = np.full(variable.shape, np.nan)
    for index in np.argwhere(done):
        values[tuple(index)] = variable[tuple(index)].values
    return values


def _named(data: xr.Dataset, cells: tuple[tuple[int, ...], ...]) -> str:
    """A few cells, by their coordinates."""
    dims = data["status"].dims
    places = ((f"{dim}={data[dim].values[k]}" for dim, k in zip(dims, index, strict=True)) for index in cells[:3])
    shown = [f"({', '.join(place)})" for place in places]
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return f"{', '.join(shown)}{more} {'is' if len(cells) == 1 else 'are'}"
