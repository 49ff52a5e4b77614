"""A scan: what every head of a model does, as a table, in words, as a page, and on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.models.scanning.ablation import Ablation, ablation
from bulkedge.models.scanning.assembly import HEAD, TEXT, over_texts
from bulkedge.models.scanning.random_heads import FreshHeads
from bulkedge.models.scanning.scan_summary import alarms, sentences
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError, StoreError
from bulkedge.support.files import replace_text

if TYPE_CHECKING:
    import pandas as pd

DRAWS = Integers(2, 10_000)
PLACE = ("layer", "head", "module")


@dataclass(frozen=True, eq=False)
class Scan:
    """What a scan found.

    Attributes
    ----------
    data : xarray.Dataset
        Everything, by text and head; :mod:`bulkedge.models.scanning.glossary` says what the variables mean.
    fresh : tuple of FreshHeads
        Of the first text, a null for every layer that was read; empty without draws, and for a loaded scan.
    model : torch.nn.Module or None
        What was read; a loaded scan has none.
    """

    data: xr.Dataset
    fresh: tuple[FreshHeads, ...] = field(default=(), repr=False)
    model: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        """What was read."""
        return f"Scan({self.data.attrs['model']!r}, {self.data.sizes[HEAD]} heads, {self.data.sizes[TEXT]} texts)"

    @property
    def table(self) -> pd.DataFrame:
        """A row a head, medians over texts, most of its numbers as columns."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records())

    def records(self) -> list[dict[str, Any]]:
        """The rows of the table.

        Returns
        -------
        list of dict
            A head each, in the order of layers.
        """
        columns: dict[str, list[Any]] = {name: self.data[name].to_numpy().tolist() for name in PLACE}
        for name, values in self.data.data_vars.items():
            if values.dims == (TEXT, HEAD):
                columns[str(name)] = over_texts(values).tolist()
            elif values.dims == (HEAD,):
                columns[str(name)] = values.to_numpy().tolist()
            elif values.dims == (HEAD, "factor"):
                factors = self.data.factor.to_numpy()
                columns |= {f"{name}_{each}": values.sel(factor=each).to_numpy().tolist() for each in factors}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def head(self, layer: int, head: int) -> Head:
        """One head.

        Parameters
        ----------
        layer, head : int
            As in the table.

        Returns
        -------
        Head
            Its numbers and spectrum.
        """
        layers, heads = self.data["layer"].to_numpy(), self.data["head"].to_numpy()
        found = np.flatnonzero((layers == layer) & (heads == head))
        if len(found) == 0:
            raise DomainError(f"there is no head {head} in layer {layer}; layers are {np.unique(layers).tolist()}")
        return Head(self, int(found[0]))

    def null(self, layer: int, beta: float) -> tuple[dict[str, Real], Real]:
        """Fresh heads of a layer at an inverse temperature.

        Parameters
        ----------
        layer : int
            As in the table.
        beta : float
            Inverse temperature, sinks taken away.

        Returns
        -------
        numbers : dict of str to array of shape (draws,)
            The tested measures of each.
        spectra : array of shape (draws, levels)
            Quantiles of their singular values.
        """
        from bulkedge.models.scanning.random_heads import TESTED

        places = list(dict.fromkeys(self.data.layer.to_numpy().tolist()))
        if not self.fresh or layer not in places:
            raise DomainError(f"there are no fresh heads of layer {layer}: scan with draws, and layers {places}")
        numbers, spectra = self.fresh[places.index(layer)].at(beta)
        return {name: TESTED[name][1](each) for name, each in numbers.items()}, np.exp(spectra)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to look at, in words."""
        return tuple(alarms(self.data, self.records()))

    def summary(self) -> str:
        """What the model's heads are, in a few lines.

        Returns
        -------
        str
            Plain English.
        """
        return "\n".join(sentences(self.data, self.records()))

    def ablate(
        self,
        loss: Callable[[Any], float],
        heads: Iterable[tuple[int, int]] | None = None,
        *,
        draws: int = 10,
        model: Any = None,
        rng: Any = 0,
    ) -> Ablation:
        """Switch heads off together, and as many random heads of the same layers, and ask what that costs.

        Parameters
        ----------
        loss : callable
            Takes the model and returns a number that is larger where the model is worse.
        heads : iterable of (layer, head), optional
            Which; the idle candidates by default.
        draws : int, optional
            How often random heads are drawn, as many as the heads in each of their layers, none of these among them
            where the layer has enough others.
        model : torch.nn.Module, optional
            The model, for a loaded scan.
        rng : int or numpy.random.Generator, optional
            Draws the random heads.

        Returns
        -------
        Ablation
            Cost of the heads, and of random ones with its standard error.
        """
        model = self.model if model is None else model
        if model is None:
            raise DomainError("a loaded scan has no model: ablate(loss, model=...)")
        rows = self.records()
        chosen = [(row["layer"], row["head"]) for row in rows if row["idle"]] if heads is None else list(heads)
        if not chosen:
            raise DomainError("there is no head to switch off: this scan has no idle candidates; name some by heads=")
        places = [(self.head(*each).numbers["module"], each[1]) for each in chosen]
        members = {name: [row["head"] for row in rows if row["module"] == name] for name, _ in places}
        draws, rng = DRAWS.check("draws", draws), np.random.default_rng(rng)
        return ablation(model, loss, places, members, draws=draws, rng=rng)

    def to_html(self, path: str | Path, before: Scan | None = None) -> Path:
        """Write one page that needs nothing else.

        Parameters
        ----------
        path : str or Path
            Where.
        before : Scan, optional
            Another scan of the same heads, to be shown side by side.

        Returns
        -------
        Path
            The page.
        """
        from bulkedge.models.scanning.page import scan_page

        page = scan_page(
            self.data,
            title=str(self.data.attrs["model"]),
            summary=sentences(self.data, self.records()),
            warnings=self.warnings,
            before=None if before is None else before.data,
        )
        path = Path(path)
        replace_text(path, page)
        return path

    def save(self, path: str | Path) -> Path:
        """Save everything but the fresh heads as a Zarr store.

        Parameters
        ----------
        path : str or Path
            A folder that is not there yet.

        Returns
        -------
        Path
            The folder.
        """
        path = Path(path)
        if path.exists():
            raise StoreError(f"{path} is there already; choose another name, or remove it")
        # texts of any length are in the specification of Zarr, those of fixed length are not
        texts = [name for name, each in self.data.variables.items() if each.dtype.kind == "U"]
        saved = self.data.assign({name: self.data[name].astype(object) for name in texts})
        saved.attrs["order"] = list(self.data.data_vars)
        saved.to_zarr(path, zarr_format=3, consolidated=False)
        return path


def load_scan(path: str | Path) -> Scan:
    """A saved scan.

    Parameters
    ----------
    path : str or Path
        Where :meth:`Scan.save` put it.

    Returns
    -------
    Scan
        Without its fresh heads.

    Raises
    ------
    StoreError
        If there is no scan.
    """
    try:
        data = xr.open_zarr(path, consolidated=False, chunks=None).load()
        texts = [name for name, each in data.variables.items() if each.dtype.kind in "TO"]
        data = data.assign({name: data[name].copy(data=np.array(data[name].to_numpy().tolist())) for name in texts})
        data = data[data.attrs.pop("order")]
        missing = {"kind", "spectrum", "beta"} - set(data.data_vars) or {"model"} - set(data.attrs)
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is not a scan that Scan.save wrote: {error}") from None
    if missing:
        raise StoreError(f"{path} is not a scan that Scan.save wrote: it has no {sorted(missing)}")
    return Scan(data)


class Head(NamedTuple):
    """One head of a scan."""

    scan: Scan
    item: int

    @property
    def numbers(self) -> dict[str, Any]:
        """Its row of the table."""
        return self.scan.records()[self.item]

    @property
    def spectrum(self) -> xr.DataArray:
        """Quantiles of its singular values, sinks taken away, by text and level."""
        return self.scan.data.spectrum.isel(item=self.item)

    def plot(self, ax: Any = None) -> Any:
        """Draw its spectrum in the band of fresh heads."""
        from bulkedge import plots

        return plots.plot_head(self.scan.data.isel(item=self.item), ax=ax)


def compare_scans(a: Scan, b: Scan) -> pd.DataFrame:
    """How every number of every head changed from one scan to another of the same heads.

    Parameters
    ----------
    a, b : Scan
        Two checkpoints of a model, or a model before and after a repair, read on the same texts.

    Returns
    -------
    DataFrame
        A row a head: ``NAME`` of the first, ``NAME_after`` of the second for kinds, and ``NAME_change`` for numbers.
    """
    import pandas as pd

    one, other = a.table, b.table
    places = list(PLACE)
    if not one[places].equals(other[places]):
        raise DomainError(f"{a!r} and {b!r} are not scans of the same heads")
    found = {name: one[name] for name in places}
    for name in one.columns.drop(places):
        found[name] = one[name]
        if one[name].dtype.kind == "f":
            found[f"{name}_change"] = other[name] - one[name]
        else:
            found[f"{name}_after"] = other[name]
    return pd.DataFrame(found)
