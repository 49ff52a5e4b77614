"""A scan: what every head of a model does, as a table, in words, as a page, and on disk.

:func:`assemble` makes its dataset, a row a head, from what the layers of a model showed on each text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.heads.measures.attention_measures import MEASURES
from bulkedge.heads.measures.kinds import KINDS, idle, kinds_of
from bulkedge.heads.measures.singular_values import LEVELS
from bulkedge.models.scanning.glossary import summary_sentences, warning_sentences
from bulkedge.models.scanning.random_heads import TESTED, Deviations, RandomHeads, p_values
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError, StoreError
from bulkedge.support.files import replace_text
from bulkedge.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from bulkedge.models.scanning.ablation import Ablation

PLACE = ("layer", "head", "module")
HEAD, TEXT = "item", "text"
SHOWN = np.linspace(0.0, 1.0, 33)
"""Levels of the spectra that a scan keeps."""
LONGER = (2, 8, 32)
"""How many times as many tokens a scan asks about."""
PREDICTED = ("coupling", "effective_dim", "predicted_entropy", "popularity_correlation")
"""What the moments of queries and keys predict of a head."""


@dataclass(frozen=True, eq=False)
class Scan:
    """What a scan found.

    Attributes
    ----------
    data : xarray.Dataset
        Everything, by text and head; :mod:`bulkedge.models.scanning.glossary` says what the variables mean.
    random_heads : tuple of RandomHeads
        Of the first text, a null for every layer that was read; empty without draws, and for a loaded scan.
    model : torch.nn.Module or None
        What was read; a loaded scan has none.
    """

    data: xr.Dataset
    random_heads: tuple[RandomHeads, ...] = field(default=(), repr=False)
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

    def head(self, layer: int, head: int) -> ScanHead:
        """One head.

        Parameters
        ----------
        layer, head : int
            As in the table.

        Returns
        -------
        ScanHead
            Its numbers and spectrum.
        """
        layers, heads = self.data["layer"].to_numpy(), self.data["head"].to_numpy()
        found = np.flatnonzero((layers == layer) & (heads == head))
        if len(found) == 0:
            raise DomainError(f"there is no head {head} in layer {layer}; layers are {np.unique(layers).tolist()}")
        return ScanHead(self, int(found[0]))

    def null(self, layer: int, beta: float) -> tuple[dict[str, Real], Real]:
        """Random heads of a layer at an inverse temperature.

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
        places = list(dict.fromkeys(self.data.layer.to_numpy().tolist()))
        if not self.random_heads or layer not in places:
            raise DomainError(f"there are no random heads of layer {layer}: scan with draws, and layers {places}")
        numbers, spectra = self.random_heads[places.index(layer)].at(beta)
        return {name: TESTED[name][1](each) for name, each in numbers.items()}, np.exp(spectra)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to look at, in words."""
        return tuple(warning_sentences(self.data, self.records()))

    def summary(self) -> str:
        """What the model's heads are, in a few lines.

        Returns
        -------
        str
            Plain English.
        """
        return "\n".join(summary_sentences(self.data, self.records()))

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
        from bulkedge.models.scanning.ablation import ablation_cost  # which needs torch

        model = self.model if model is None else model
        if model is None:
            raise DomainError("a loaded scan has no model: ablate(loss, model=...)")
        rows = self.records()
        chosen = [(row["layer"], row["head"]) for row in rows if row["idle"]] if heads is None else list(heads)
        if not chosen:
            raise DomainError("there is no head to switch off: this scan has no idle candidates; name some by heads=")
        places = [(self.head(*each).numbers["module"], each[1]) for each in chosen]
        members = {name: [row["head"] for row in rows if row["module"] == name] for name, _ in places}
        draws, rng = Integers(2, 10_000).check("draws", draws), np.random.default_rng(rng)
        return ablation_cost(model, loss, places, members, draws=draws, rng=rng)

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
            summary=summary_sentences(self.data, self.records()),
            warnings=self.warnings,
            before=None if before is None else before.data,
        )
        path = Path(path)
        replace_text(path, page)
        return path

    def save(self, path: str | Path) -> Path:
        """Save everything but the random heads as a Zarr store.

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
        Without its random heads.

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


class ScanHead(NamedTuple):
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
        """Draw its spectrum in the band of random heads."""
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


# -- the dataset -------------------------------------------------------------------------------------------------------


@dataclass
class Reading:
    """What one text showed: lists over layers, in the order in which they were called."""

    title: str
    tokens: int = 0
    names: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    causal: list[bool] = field(default_factory=list)
    measures: list[dict[str, Real]] = field(default_factory=list)
    random_heads: list[RandomHeads] = field(default_factory=list)
    deviations: list[Deviations] = field(default_factory=list)
    pictures: list[Real] = field(default_factory=list)
    token_stable_rank: list[float] = field(default_factory=list)
    token_cosine: list[float] = field(default_factory=list)


def assemble(
    readings: Sequence[Reading], probes: Mapping[str, Real] | None, attributes: Mapping[str, object]
) -> xr.Dataset:
    """One dataset of all texts."""
    first = readings[0]
    counts = [len(each["beta"]) for each in first.measures]
    data = xr.Dataset(
        coords={
            "layer": (HEAD, np.repeat(first.indices, counts)),
            "head": (HEAD, np.concatenate([np.arange(each) for each in counts])),
            "module": (HEAD, np.repeat(first.names, counts)),
            "title": (TEXT, [each.title for each in readings]),
            "level": SHOWN,
            "factor": list(LONGER),
            "module_name": ("layer_index", first.names),
        },
        attrs={**attributes, "version": __version__, "causal": int(all(first.causal))},
    )
    columns = [_columns(each) for each in readings]
    for name in columns[0]:
        data[name] = ((TEXT, HEAD), np.stack([each[name] for each in columns]))
    for name, values in _spectra(readings).items():
        data[name] = ((TEXT, HEAD, "level"), values)
    for name in ("longer_entropy", "scale"):
        texts = [np.concatenate([each[name] for each in reading.measures]) for reading in readings]
        data[name] = ((HEAD, "factor"), over_texts(xr.DataArray(np.array(texts), dims=(TEXT, HEAD, "factor"))))
    for name in ("token_stable_rank", "token_cosine"):
        data[name] = ((TEXT, "layer_index"), np.array([getattr(each, name) for each in readings]))
    data["picture"] = ((HEAD, "row", "column"), np.concatenate(first.pictures))
    for name in ("induction", "duplicate", "previous"):
        places = zip(first.indices, counts, strict=True)
        scores = [np.full(count, np.nan) if probes is None else probes[name][place, :count] for place, count in places]
        data[name] = (HEAD, np.concatenate(scores))
    return _with_kinds(data)


def over_texts(variable: xr.DataArray) -> Real:
    """Median over texts of what is a number there; nan where no text has one."""
    values = np.asarray(variable, dtype=float)
    if "text" not in variable.dims:
        return values
    values = np.moveaxis(values, variable.dims.index("text"), 0)
    ordered = np.sort(values, axis=0)  # nan last
    count = np.sum(~np.isnan(values), axis=0, keepdims=True)
    low, high = (
        np.take_along_axis(ordered, np.clip(middle, 0, None), axis=0)[0] for middle in ((count - 1) // 2, count // 2)
    )
    if variable.name in ("sink_count", "sink_position", "offset"):  # the lower of two is a count or a position too
        return low
    return np.where(count[0] % 2 == 1, low, low / 2 + np.where(count[0] > 0, high, np.nan) / 2)


def _columns(reading: Reading) -> dict[str, Real]:
    """Everything that is one number a head and text."""
    found = {name: np.concatenate([each[name] for each in reading.measures]) for name in (*MEASURES, *PREDICTED)}
    if not reading.deviations:
        nothing = np.full(len(found["beta"]), np.nan)
        names = ["distance", "null_distance", "p_spectrum", "p", "q"]
        names += [prefix + name for name in TESTED for prefix in ("null_", "p_")]
        return found | dict.fromkeys(names, nothing)
    for name in ("distance", "null_distance"):
        found[name] = np.concatenate([getattr(each, name) for each in reading.deviations])
    for name in TESTED:
        found[f"null_{name}"] = np.concatenate([each.middle[name] for each in reading.deviations])
    return found | p_values(reading.deviations)


def _spectra(readings: Sequence[Reading]) -> dict[str, Real]:
    """Spectra of heads, and the band of random ones, at the levels that are kept."""
    own = [np.concatenate([each["spectrum"] for each in reading.measures]) for reading in readings]
    found = {"spectrum": _at_shown_levels(np.stack(own))}
    for place, name in enumerate(("null_low", "null_middle", "null_high")):
        if not readings[0].deviations:
            found[name] = np.full_like(found["spectrum"], np.nan)
        else:
            bands = [np.concatenate([each.band[place] for each in reading.deviations]) for reading in readings]
            found[name] = _at_shown_levels(np.stack(bands))
    return found


def _at_shown_levels(quantiles: Real) -> Real:
    flat = quantiles.reshape(-1, quantiles.shape[-1])
    return np.array([np.interp(SHOWN, LEVELS, each) for each in flat]).reshape(*quantiles.shape[:-1], len(SHOWN))


def _with_kinds(data: xr.Dataset) -> xr.Dataset:
    """Kinds from the medians over texts, and on how many texts the head is of that kind."""
    names = [*MEASURES, "p_spectrum"]
    centre = {name: over_texts(data[name]) for name in names}
    kinds = kinds_of(centre)
    data["kind"] = (HEAD, np.array(kinds.first))
    data["kinds"] = (HEAD, np.array([", ".join(each) for each in kinds.labels]))
    for kind in KINDS:
        data[f"score_{kind.name}"] = (HEAD, kinds.scores[kind.name])
    texts = [kinds_of({name: data[name].to_numpy()[i] for name in names}) for i in range(data.sizes[TEXT])]
    data["agreement"] = (HEAD, np.mean([np.array(each.first) == np.array(kinds.first) for each in texts], axis=0))
    data["idle"] = (HEAD, idle(centre))
    return data
