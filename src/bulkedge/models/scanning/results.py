"""A scan: what every head of a model does, as a table, in words, as a page, and on disk.

:func:`assemble` makes its dataset, a row a head, from what the layers of a model showed on each text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.heads.measures.attention_measures import MEASURES
from bulkedge.heads.measures.kinds import KINDS, PROBED, kinds_of
from bulkedge.heads.measures.singular_values import LEVELS
from bulkedge.models.scanning.glossary import FACTS, missing_sentences, summary_sentences, warning_sentences
from bulkedge.models.scanning.random_heads import TESTED, Deviations, RandomHeads, p_values
from bulkedge.models.scanning.removal import EFFECTS, Removal, cheapest_heads, mean_outputs
from bulkedge.support.arrays import Real
from bulkedge.support.domains import PATH, Choice, Integers, shown, takes
from bulkedge.support.errors import BulkedgeError, DomainError, StoreError
from bulkedge.support.estimates import Estimate
from bulkedge.support.files import load_dataset, replace_file, save_dataset
from bulkedge.support.random import seeded
from bulkedge.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from bulkedge.models.scanning.importance import Ablation

PLACE = ("layer", "head", "module")
HEAD, TEXT = "item", "text"
SHOWN = np.linspace(0.0, 1.0, 33)
"""Levels of the spectra that a scan keeps."""
LONGER = (2, 8, 32)  # how many times as many tokens a scan asks about
PREDICTED = ("coupling", "effective_dim", "predicted_entropy", "popularity_correlation")
"""What the moments of queries and keys predict of a head."""
OUTPUT = ("output", "output_error", "variation", "variation_error")
"""Norms of what a head adds to the residual stream."""


@dataclass(frozen=True, eq=False)
class Scan:
    """What a scan found.

    >>> import torch
    >>> from bulkedge.models import scan
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> scan(layer, {"src": torch.randn(1, 40, 16)}, draws=0).table.shape[0]                # a row for each head
    2

    Attributes
    ----------
    data : xarray.Dataset
        Everything, by text and head; :mod:`bulkedge.models.scanning.glossary` says what the variables mean.
    random_heads : tuple of RandomHeads
        Of the first text, a null for every layer that was read; empty without draws, and for a loaded scan.
    model : torch.nn.Module or None
        What was read; a loaded scan has none.
    material : Material or None
        What it read, to be asked again; likewise.
    """

    data: xr.Dataset
    random_heads: tuple[RandomHeads | None, ...] = field(default=(), repr=False)
    model: Any = field(default=None, repr=False)
    material: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        """What was read."""
        return f"Scan({self.data.attrs['model']!r}, {self.data.sizes[HEAD]} heads, {self.data.sizes[TEXT]} texts)"

    @property
    def table(self) -> pd.DataFrame:
        """A row a head, medians over texts, most of its numbers as columns."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records())

    def records(self) -> list[dict[str, Any]]:
        """The rows of the table, a dictionary for each head, in the order of layers."""
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
        null = self.random_heads[places.index(layer)]
        if null is None:
            raise DomainError(f"there are no random heads of layer {layer}: " + " ".join(self.warnings))
        numbers, spectra = null.at(beta)
        return {name: TESTED[name][1](each) for name, each in numbers.items()}, np.exp(spectra)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to look at, in words."""
        return tuple(warning_sentences(self.data, self.records()))

    def summary(self) -> str:
        """What the model's heads are, in a few lines of plain English."""
        return "\n".join(summary_sentences(self.data, self.records()))

    def removable(
        self,
        heads: int | None = None,
        *,
        share: float | None = None,
        budget: float | None = None,
        groups: bool = False,
        steps: int = 1,
    ) -> Removal:
        """Heads that can go, and what predictions are expected to lose without them, on texts and on copied tokens.

        One after the other the head is taken that adds least to what the set costs, to second order.

        Parameters
        ----------
        heads : int, optional
            How many go at most.
        share : float, optional
            The share of all heads that goes at most.
        budget : float, optional
            What they may cost together, in nats a token.
        groups : bool, optional
            Whether heads that share a key go together or not at all.
        steps : int, optional
            In how many steps heads are chosen. Before each but the first, importance is measured again without the
            heads that are gone (which takes as long as the first time), and after each, how far predictions have moved;
            that is then the ``cost``, and kept within ``budget``.

        Returns
        -------
        Removal
            Iterates as (layer, head), cheapest first; ``cost`` is an estimate.

        Raises
        ------
        DomainError
            If the scan has no importance, or not one of ``heads``, ``share`` and ``budget`` is given.
        """
        if EFFECTS[0] not in self.data:
            raise DomainError(
                " ".join(
                    [
                        "this scan does not say what heads are worth: scan with importance=True.",
                        *missing_sentences(self.data),
                    ]
                )
            )
        return cheapest_heads(self.data, heads, share, budget, groups=groups, steps=steps, material=self.material)

    def ablate(  # noqa: PLR0913 - how, and of what
        self,
        loss: Callable[[Any], Any],
        heads: Iterable[tuple[int, int]],
        *,
        draws: int = 10,
        replace: str = "zero",
        model: Any = None,
        rng: Any = 0,
    ) -> Ablation:
        """Switch heads off together, and as many random heads of the same layers, and ask what that costs.

        Of a decoder that reads tokens, copying is asked too: the loss on the second copy of random tokens.

        Parameters
        ----------
        loss : callable
            Takes the model, in evaluation mode and without gradients, and returns a number that is larger where the
            model is worse, or several, such as one for each text: then the cost has an error.
        heads : iterable of (layer, head)
            Which, as from :meth:`removable`.
        draws : int, optional
            How often random heads are drawn, as many as the heads in each of their layers, none of these among them
            where the layer has enough others.
        replace : {"zero", "mean"}, optional
            What heads give instead: nothing, or their mean output over the tokens of the scan.
        model : torch.nn.Module, optional
            The model, for a loaded scan.
        rng : int or numpy.random.Generator, optional
            Draws the random heads.

        Returns
        -------
        Ablation
            Cost of the heads, and of random ones with its standard error; ``copies`` is the same for copied tokens.
        """
        from bulkedge.models.scanning.importance import ablation_cost  # which needs torch

        model = self.model if model is None else model
        if model is None:
            raise DomainError("a loaded scan has no model: ablate(loss, model=...)")
        rows = self.records()
        chosen = [rows[item] for item in self._items(heads)]
        if not chosen:
            raise DomainError("there is no head to switch off: name some as (layer, head)")
        places = [(row["module"], row["head"]) for row in chosen]
        members = {name: [row["head"] for row in rows if row["module"] == name] for name, _ in places}
        draws, rng = Integers(2, 10_000).check("draws", draws), seeded(rng)
        means = self._mean_outputs() if Choice(("zero", "mean")).check("replace", replace) == "mean" else None
        losses: list[Callable[[], Any]] = [lambda: loss(model)]
        if self.material is not None and model is self.model:
            losses.append(self.material.copy_losses)
        return ablation_cost(model, losses, places, members, means=means, draws=draws, rng=rng)

    def _mean_outputs(self) -> dict[str, Any]:
        """Mean output of the heads of each module, (heads, dimension)."""
        import torch

        found = mean_outputs(self.data)
        if not found:
            raise DomainError("this scan has no mean outputs to put in the place of heads: scan again, or take zeros")
        return {name: torch.as_tensor(each) for name, each in found.items()}

    def moved(self, removal: Iterable[tuple[int, int]]) -> Estimate:
        """Measure how far predictions move without some heads, on the texts plus on copied tokens.

        Parameters
        ----------
        removal : iterable of (layer, head)
            Which, as from :meth:`removable`.

        Returns
        -------
        Estimate
            In nats a token, with the error over rows; without logits, half the squared change of the output over its
            variance. What :meth:`removable` predicts.

        Raises
        ------
        DomainError
            If the scan was loaded: it has no model.
        """
        if self.material is None:
            raise DomainError("a loaded scan has no model to measure: scan anew")
        return self.material.cost(self.material.gates_without(self._items(removal)))

    def _items(self, heads: Iterable[tuple[int, int]]) -> list[int]:
        """Rows of heads that are named as (layer, head), each once."""
        try:
            places = dict.fromkeys((index(layer), index(head)) for layer, head in heads)
        except (TypeError, ValueError):
            raise DomainError(f"heads = {shown(heads)}: give pairs (layer, head) of whole numbers") from None
        return [self.head(*each).item for each in places]

    def to_html(
        self, path: str | Path, before: Scan | None = None, removals: Iterable[Iterable[tuple[int, int]]] = ()
    ) -> Path:
        """Write one page that needs nothing else.

        Parameters
        ----------
        path : str or Path
            Where.
        before : Scan, optional
            Another scan of the same heads, to be shown side by side.
        removals : iterable of Removal, optional
            Heads whose cost is to be measured (:meth:`moved`), and shown beside the predicted costs.

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
            measured=[(len(each), *self.moved(each)[:2]) for each in map(tuple, removals)],
        )
        path = Path(path)
        replace_file(path, page)
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
        save_dataset(self.data.assign_attrs(order=list(self.data.data_vars)), path)
        return path


@takes(path=PATH)
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
        If there is no scan, or its files are not those that were written.

    Examples
    --------
    >>> load_scan("before.zarr").summary()                            # doctest: +SKIP
    """
    data = load_dataset(path, "a scan that Scan.save wrote")
    missing = {"kind", "spectrum", "beta"} - set(data.data_vars) or {"model", "order"} - set(data.attrs)
    if missing:
        raise StoreError(f"{path} is not a scan that Scan.save wrote: it has no {sorted(missing)}")
    return Scan(data[data.attrs.pop("order")])


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

        return plots.spectra.plot_head(self.scan.data.isel(item=self.item), ax=ax)


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

    Examples
    --------
    >>> compare_scans(load_scan("before.zarr"), load_scan("after.zarr"))   # doctest: +SKIP
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


Noted = Callable[[str, Iterable[int]], AbstractContextManager[None]]
"""Makes a ``with`` block in which a number of some heads may fail."""
FAILURES = (BulkedgeError, ArithmeticError, ValueError, RuntimeError)
"""Errors of one number, without which a scan goes on."""


@dataclass
class Reading:
    """What one text showed: lists over layers, in the order in which they were called."""

    title: str
    tokens: int = 0
    names: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    causal: list[bool] = field(default_factory=list)
    measures: list[dict[str, Real]] = field(default_factory=list)
    random_heads: list[RandomHeads | None] = field(default_factory=list)
    deviations: list[Deviations] = field(default_factory=list)
    pictures: list[Real] = field(default_factory=list)
    token_stable_rank: list[float] = field(default_factory=list)
    token_cosine: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    missing: list[tuple[str, int | None, int, str]] = field(default_factory=list)
    """Numbers that could not be had: column, layer, head (-1 for no head in particular), and the reason."""

    @contextmanager
    def noted(self, name: str, heads: Iterable[int], layer: int | None) -> Iterator[None]:
        """Keep the reason why a number of some heads of a layer is missing, and go on."""
        try:
            yield
        except FAILURES as error:
            self.missing += [(name, layer, head, str(error)) for head in list(heads) or [-1]]


def assemble(
    readings: Sequence[Reading],
    probes: Mapping[str, Real] | None,
    attributes: Mapping[str, object],
    worth: Mapping[str, Real] | None = None,
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
    if missing := list(dict.fromkeys(each for reading in readings for each in reading.missing)):
        data.attrs["missing"] = json.dumps(missing)
    for name in FACTS:
        data[name] = (TEXT, np.array([reading.facts.get(name, np.nan) for reading in readings]))
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
    means = [np.mean(each, axis=0) for each in zip(*(_means(reading) for reading in readings), strict=True)]
    width = max(each.shape[1] for each in means)
    padded = [np.pad(each, ((0, 0), (0, width - each.shape[1])), constant_values=np.nan) for each in means]
    data["mean_output"] = ((HEAD, "entry"), np.concatenate(padded))
    data["picture"] = ((HEAD, "row", "column"), np.concatenate(first.pictures))
    for name in PROBED:
        places = zip(first.indices, counts, strict=True)
        scores = [np.full(count, np.nan) if probes is None else probes[name][place, :count] for place, count in places]
        data[name] = (HEAD, np.concatenate(scores))
    for name, values in (worth or {}).items():
        data[name] = (HEAD if values.ndim == 1 else (f"draw_of_{name}", HEAD), values)
    data = data.set_coords(["key_head"] if worth and "key_head" in worth else [])
    return _with_kinds(data)


def _means(reading: Reading) -> list[Real]:
    """Mean output of the heads of each layer, before the projection."""
    return [each["mean_output"] for each in reading.measures]


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
    found = {
        name: np.concatenate([each[name] for each in reading.measures]) for name in (*MEASURES, *PREDICTED, *OUTPUT)
    }
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
        bands = [np.concatenate([each.band[place] for each in reading.deviations]) for reading in readings]
        found[name] = _at_shown_levels(np.stack(bands))
    return found


def _at_shown_levels(quantiles: Real) -> Real:
    flat = quantiles.reshape(-1, quantiles.shape[-1])
    return np.array([np.interp(SHOWN, LEVELS, each) for each in flat]).reshape(*quantiles.shape[:-1], len(SHOWN))


def _with_kinds(data: xr.Dataset) -> xr.Dataset:
    """Kinds from the medians over texts, and on how many texts the head is of that kind."""
    names = [*MEASURES, "p_spectrum", *PROBED]
    centre = {name: over_texts(data[name]) for name in names}
    kinds = kinds_of(centre)
    data["kind"] = (HEAD, np.array(kinds.first))
    data["kinds"] = (HEAD, np.array([", ".join(each) for each in kinds.labels]))
    for kind in KINDS:
        data[f"score_{kind.name}"] = (HEAD, kinds.scores[kind.name])
    texts = [kinds_of({name: _of_text(data[name], i) for name in names}) for i in range(data.sizes[TEXT])]
    data["agreement"] = (HEAD, np.mean([np.array(each.first) == np.array(kinds.first) for each in texts], axis=0))
    return data


def _of_text(variable: xr.DataArray, text: int) -> Real:
    """Values of the heads on a text, where they differ between texts."""
    return (variable[text] if TEXT in variable.dims else variable).to_numpy()
