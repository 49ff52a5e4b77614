"""From what the layers of a model showed on each text to one labelled dataset, a row a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from bulkedge.heads.measures.attention_measures import MEASURES
from bulkedge.heads.measures.kinds import KINDS, idle, kinds_of
from bulkedge.models.scanning.p_values import Beside, p_values, thinned
from bulkedge.models.scanning.predicted import LONGER, PREDICTED
from bulkedge.models.scanning.random_heads import TESTED, FreshHeads
from bulkedge.support.arrays import Real
from bulkedge.version import __version__

SHOWN = np.linspace(0.0, 1.0, 33)
"""Levels of the spectra that a scan keeps."""
HEAD, TEXT = "item", "text"
WHOLE = ("sink_count", "sink_position", "offset")
"""Counts and positions: of an even number of texts, the lower of the two middle ones, which is a position too."""


@dataclass
class Reading:
    """What one text showed: lists over layers, in the order in which they were called."""

    title: str
    tokens: int = 0
    names: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    causal: list[bool] = field(default_factory=list)
    measures: list[dict[str, Real]] = field(default_factory=list)
    fresh: list[FreshHeads] = field(default_factory=list)
    surprises: list[Beside] = field(default_factory=list)
    pictures: list[Real] = field(default_factory=list)
    token_stable_rank: list[float] = field(default_factory=list)
    token_cosine: list[float] = field(default_factory=list)


def assembled(
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
    if variable.name in WHOLE:
        return low
    return np.where(count[0] % 2 == 1, low, low / 2 + np.where(count[0] > 0, high, np.nan) / 2)


def _columns(reading: Reading) -> dict[str, Real]:
    """Everything that is one number a head and text."""
    found = {name: np.concatenate([each[name] for each in reading.measures]) for name in (*MEASURES, *PREDICTED)}
    if not reading.surprises:
        nothing = np.full(len(found["beta"]), np.nan)
        names = ["distance", "null_distance", "p_spectrum", "p", "q"]
        names += [prefix + name for name in TESTED for prefix in ("null_", "p_")]
        return found | dict.fromkeys(names, nothing)
    for name in ("distance", "null_distance"):
        found[name] = np.concatenate([getattr(each, name) for each in reading.surprises])
    for name in TESTED:
        found[f"null_{name}"] = np.concatenate([each.middle[name] for each in reading.surprises])
    return found | p_values(reading.surprises)


def _spectra(readings: Sequence[Reading]) -> dict[str, Real]:
    """Spectra of heads, and the band of fresh ones, at the levels that are kept."""
    own = [np.concatenate([each["spectrum"] for each in reading.measures]) for reading in readings]
    found = {"spectrum": thinned(np.stack(own), SHOWN)}
    for place, name in enumerate(("null_low", "null_middle", "null_high")):
        if not readings[0].surprises:
            found[name] = np.full_like(found["spectrum"], np.nan)
        else:
            bands = [np.concatenate([each.band[place] for each in reading.surprises]) for reading in readings]
            found[name] = thinned(np.stack(bands), SHOWN)
    return found


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
