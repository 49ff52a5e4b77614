"""A scan in plain English: what heads a model has, and what to look at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.heads.measures.kinds import KINDS
from bulkedge.models.scanning.assembly import TEXT

LEVEL = 0.05
"""False discovery rate at which a head is told from random weights."""
FROZEN = 0.9
"""Mean largest weight of a row beyond which a head's rows are said to be frozen."""
ALIKE = 0.95
"""Mean cosine of tokens beyond which a layer's tokens are said to be alike."""


def _where(rows: list[dict[str, Any]], most: int = 6) -> str:
    """Heads as people name them."""
    names = [f"{each['layer']}.{each['head']}" for each in rows[:most]]
    return ", ".join(names) + (f" and {len(rows) - most} more" if len(rows) > most else "")


def _counted(rows: list[dict[str, Any]]) -> str:
    return "one head" if len(rows) == 1 else f"{len(rows)} heads"


def sentences(data: xr.Dataset, rows: list[dict[str, Any]]) -> list[str]:
    """What the model's heads are, a sentence each."""
    layers = len(np.unique(data.layer.to_numpy()))
    texts = data.sizes[TEXT]
    read = f"{texts} text{'s' * (texts > 1)} of up to {data.attrs['tokens']} tokens"
    found = [f"{data.attrs['model']}: {len(rows)} heads in {layers} layers, read on {read}."]
    counted = Counter(each["kind"] for each in rows)
    titles = {each.name: each.title for each in KINDS}
    found.append("Kinds: " + ", ".join(f"{count} {titles[kind]}" for kind, count in counted.most_common()) + ".")
    if texts > 1:
        found.append(f"On average {np.mean([each['agreement'] for each in rows]):.0%} of the texts agree on the kind.")
    if data.attrs["draws"]:
        told = sum(each["q"] <= LEVEL for each in rows)
        distances = np.median([(each["distance"], each["null_distance"]) for each in rows], axis=0)
        found.append(
            f"{told} of {len(rows)} heads are told from random weights on their own inputs (false discovery rate "
            f"{LEVEL:.0%}); the spectra are {distances[0]:.3f} from random ones, which are {distances[1]:.3f} apart."
        )
    candidates = [each for each in rows if each["idle"]]
    if candidates:
        found.append(f"Idle candidates, to be checked by ablation: {_where(candidates)}.")
    for name, words in (("induction", "induction"), ("previous", "previous-token")):
        best = max(rows, key=lambda each: np.nan_to_num(each[name], nan=-1.0))
        if best[name] > 0.3:
            found.append(f"Strongest {words} head: {_where([best])}, score {best[name]:.2f}.")
    return found


def alarms(data: xr.Dataset, rows: list[dict[str, Any]]) -> list[str]:
    """What to look at in a model, a sentence each; none if nothing stands out."""
    found = []
    frozen = [each for each in rows if each["largest"] > FROZEN]
    if frozen:
        found.append(f"In {_counted(frozen)} rows are frozen, nearly all weight on one key ({_where(frozen)}).")
    collapsed = [each for each in rows if each["kind"] == "collapsed"]
    if collapsed:
        found.append(
            f"All but uniform, averages of the values whatever the query: {_counted(collapsed)} ({_where(collapsed)})."
        )
    cosine = data.token_cosine.median(TEXT).to_numpy()
    if np.any(cosine > ALIKE):
        names = data.module_name.to_numpy()[cosine > ALIKE].tolist()
        found.append(
            f"Tokens are nearly alike (mean cosine {cosine.max():.2f}) where they enter {', '.join(names[:3])}"
            f"{' and others' if len(names) > 3 else ''}: rank has collapsed there."
        )
    return found
