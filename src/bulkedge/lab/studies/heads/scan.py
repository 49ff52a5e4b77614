"""A scan as a study: the heads of any model, and those of the default decoder before and after its training (ours)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bulkedge.heads.measures.kinds import KINDS
from bulkedge.lab.studies.base import NO_NUMBER, Claim, Claims, Estimate, Real, Study, track
from bulkedge.models import TEXTS, sample_text
from bulkedge.models.scanning.glossary import describe
from bulkedge.plots.spectra import plot_kinds
from bulkedge.plots.style import BARS, SIMULATION, panels
from bulkedge.support.domains import Choice, Integers, Text, parameter

if TYPE_CHECKING:
    from bulkedge.models.scanning.results import Scan

STATES = ("before training", "as it is")
SPECTRA = ("spectrum", "null_low", "null_middle", "null_high")
LEVEL = 0.05
PROMPTS = 16
LONGEST = 256
"""Tokens of a prompt, at most."""
ENDS = slice(1, -1)
"""The smallest and the largest of all values are no quantiles."""


@dataclass(frozen=True)
class HeadsScan(Study):
    """In a scan heads with random weights look random, and trained heads differ significantly from them.

    The p-values of heads with random weights are spread evenly, and those of the default decoder after training are
    not. For a model of your own there is nothing before training: ``starts`` and ``steps`` do not count, and the claims
    are how far its heads are from random weights. A sweep over ``model`` reads many models, or the checkpoints of one,
    into one store; cells are known by the names of models, so a folder whose contents change needs a new store.
    """

    requires = ("torch", "transformers")

    model: str = parameter(Text(), "folder, file, hub id or name of a model; the default decoder if empty", "", ours="")
    text: str = parameter(Choice(tuple(TEXTS)), "what it reads", "alice", ours="alice")
    tokens: int = parameter(Integers(16, 2**15), "tokens that are read at most", 128, ours=256)
    draws: int = parameter(Integers(5, 10_000), "fresh random heads a layer", 13, ours=33)
    steps: int = parameter(Integers(1, 100_000), "steps of the default decoder's training", 300, ours=800)
    starts: int = parameter(Integers(1, 10_000), "default decoders that are read before training", 12, ours=100)
    small = {"tokens": 48, "steps": 5, "starts": 3}
    caption = """What a scan calls each head of a decoder, a row for each state of its training (left),
    and the spectrum of the head that ends farthest from random weights (right). At initialisation heads should be
    called random, and after training the spectrum on the right should leave that of random weights."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Numbers of all heads, those of the default decoder before and after its training; kinds are numbered."""
        from bulkedge.models import load_model

        if not self.model:
            return self._default(rng)
        model, tokenizer, _ = load_model(self.model)
        scan = self._read(model, tokenizer, rng)
        count = len(scan.records())
        nothing = {name: (("start", "item"), np.full((self.starts, count), np.nan)) for name in OF_STARTS}
        data = _as_dataset([None, scan])
        return data.assign({**nothing, "prompt_induction": ("prompt", np.full(PROMPTS, np.nan)), "chance": np.nan})

    def _default(self, rng: np.random.Generator) -> xr.Dataset:
        """The default decoder: many starts, and the first of them after training."""
        from bulkedge.models import default_model

        seeds = rng.integers(2**31, size=self.starts).tolist()
        before = []
        for seed in track(seeds, "starts"):
            start, tokenizer = default_model(seed, trained=False)
            before.append(self._read(start, tokenizer, rng, probe=seed == seeds[0]))
        model, tokenizer = default_model(seeds[0], steps=self.steps)
        after = self._read(model, tokenizer, rng)
        best = int(np.argmax(after.data.induction.to_numpy()))
        place = tuple(int(after.data[name][best]) for name in ("layer", "head"))
        scores, chance = _prompts(model, tokenizer, place, rng)
        data = _as_dataset([before[0], after])
        starts = {name: (("start", "item"), np.array([of(each) for each in before])) for name, of in OF_STARTS.items()}
        prompts = {
            "prompt_induction": ("prompt", scores, {"long_name": "induction score of the best head, on fresh prompts"}),
            "chance": ((), chance, {"long_name": "the same without preference: mean of one over the keys seen"}),
        }
        return data.assign(starts | prompts)

    def _read(self, model: Any, tokenizer: Any, rng: np.random.Generator, *, probe: bool = True) -> Scan:
        from bulkedge.models import scan

        options: dict[str, Any] = {"tokens": self.tokens, "draws": self.draws, "probe": probe}
        return scan(model, sample_text(self.text), tokenizer=tokenizer, rng=rng, **options)

    def statements(self, data: xr.Dataset) -> Claims:
        """What p-values of random heads are, how far trained ones are from them, and the best induction head."""
        if not self.model:
            yield from self._calibration(data)
        # heads of the model as it is, against heads with random weights
        final = data.sel(state=STATES[1])
        far = np.log(final.distance / final.null_distance).to_numpy()
        random = 0.0 if self.model else float(data.far_start.mean())
        middle, scatter = self._ranks(data)
        text = "logarithm of the distance to random weights over that between them, mean of all heads: above theirs"
        rival = "heads with random weights", random
        yield Claim(text, "ours", far[np.isfinite(far)], random, rival, relation=">=", one_sided=NO_NUMBER)
        text = "mean p-value of the heads of the model as it is, below that of heads with random weights"
        measured = Estimate(float(final.p.mean()), scatter / np.sqrt(12))
        rival = "heads with random weights", middle
        yield Claim(text, "ours", measured, middle, rival, relation="<=", one_sided=NO_NUMBER)
        # steps from which on the default decoder is asked whether it has learnt induction: those it has by default
        if not self.model and self.steps >= 800:  # a training that was cut short says nothing of what training does
            text = "induction score of the best head after training, above that of no preference"
            rival = "no preference", data.chance
            yield Claim(
                text, "ours", data.prompt_induction.to_numpy(), data.chance, rival, relation=">=", one_sided=NO_NUMBER
            )

    def _ranks(self, data: xr.Dataset) -> tuple[float, float]:
        """Mean of the p-values of one random model, and the scatter of shares of its heads over that of one head.

        P-values are ranks of heads among fresh ones: the scatter is Mann and Whitney's, but for a term of second order.
        """
        heads, fresh = data.sizes["item"], self.draws * len(np.unique(data.layer))
        return (fresh + 2) / (2 * fresh + 2), float(np.sqrt(1 / heads + 1 / fresh))

    def _calibration(self, data: xr.Dataset) -> Claims:
        """Before training p-values are ranks of heads among fresh ones, whose mean and scatter are known."""
        middle, scatter = self._ranks(data)
        scatter /= np.sqrt(self.starts)
        own, least = data.p_start, data.least_p_start
        smallest = "the smallest of nine p-values"
        measured = Estimate(float(own.mean()), scatter / np.sqrt(12))
        yield Claim("mean p-value of heads before training", "ours", measured, middle, (smallest, least.mean()))
        text = f"share of heads before training with p up to {LEVEL}"
        measured = Estimate(float((own <= LEVEL).mean()), scatter * np.sqrt(LEVEL * (1 - LEVEL)))
        finite_size = 1 / (self.draws * len(np.unique(data.layer)) + 1)
        reason = "derived: p-values come in steps of one over the fresh heads and one"
        yield Claim(text, "ours", measured, LEVEL, (smallest, (least <= LEVEL).mean()), finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        states = [each for each in data.state.values if np.isfinite(data.kind.sel(state=each)).all()]
        layers = len(np.unique(data.layer))
        figure, axes = panels(len(states), 2, width=3.8, height=max(2.3, 0.3 * layers + 1.0))
        final = data.sel(state=data.state[-1])
        item = int(np.nanargmax(np.log(final.distance / final.null_distance)))
        for (left, right), state in zip(axes, states, strict=True):
            shown = data.sel(state=state)
            words = state if self.model else {"as it is": f"after {self.steps} steps"}.get(state, state)
            _kinds(shown, left, words)
            _spectrum(shown.isel(item=item), right, words)
        spectra: Any = [right for _, right in axes]
        low = min(each.get_ylim()[0] for each in spectra)
        high = max(each.get_ylim()[1] for each in spectra)
        for each in spectra:
            each.set_ylim(low, high)  # one scale for what is compared
        read = f"{self.tokens} tokens of {self.text!r}, {self.draws} random heads a layer"
        figure.suptitle(f"{self.model or 'the default decoder'}: {read}")
        return figure


def _as_dataset(scans: list[Scan | None]) -> xr.Dataset:
    """Numbers by state and head; what is not there is nan, pictures and words are left out."""
    records = {state: each.records() for state, each in zip(STATES, scans, strict=True) if each is not None}
    rows = next(iter(records.values()))
    nan = [np.nan] * len(rows)
    data = xr.Dataset(coords={"state": list(STATES)})
    for name, value in rows[0].items():
        if name in ("layer", "head"):
            data[name] = ("item", [row[name] for row in rows])
        elif not isinstance(value, str):
            found = [[float(row[name]) for row in records[state]] if state in records else nan for state in STATES]
            data[name] = (("state", "item"), found, {"long_name": describe(name).title})
    names = [kind.name for kind in KINDS]
    kinds = [[names.index(row["kind"]) for row in records[state]] if state in records else nan for state in STATES]
    data["kind"] = (("state", "item"), kinds, {"long_name": "kind", "flag_meanings": ", ".join(names)})
    present = next(each for each in scans if each is not None)
    for name in SPECTRA:
        shape = present.data[name].shape[1:]
        curves = [np.full(shape, np.nan) if each is None else each.data[name].to_numpy()[0] for each in scans]
        data[name] = (("state", "item", "level"), np.array(curves), {"long_name": f"singular values: {name}"})
    return data.assign_coords(level=present.data.level.to_numpy())


def _least(scan: Scan) -> Real:
    """The smallest p-value of each head, as if it were the only one."""
    from bulkedge.models.scanning.random_heads import TESTED

    return np.min([scan.data[f"p_{name}"].to_numpy()[0] for name in (*TESTED, "spectrum")], axis=0)


def _far(scan: Scan) -> Real:
    """Logarithm of each head's distance to random weights over that between these."""
    return np.log(scan.data.distance / scan.data.null_distance).to_numpy()[0]


OF_STARTS: dict[str, Callable[[Scan], Real]] = {
    "p_start": lambda scan: scan.data.p.to_numpy()[0],
    "least_p_start": _least,
    "far_start": _far,
}
"""What is kept of the default decoder before training, a number a head."""


def _prompts(model: Any, tokenizer: Any, place: tuple[int, ...], rng: np.random.Generator) -> tuple[Real, float]:
    """Induction scores of one head on prompts that did not choose it, and the score of a head without preference."""
    from bulkedge.models.scanning.probing import ordinary_tokens, probe

    vocabulary = ordinary_tokens(tokenizer)
    half = min(LONGEST // 2, len(vocabulary))
    options: dict[str, Any] = {"tokens": LONGEST, "prompts": 1, "vocabulary": vocabulary, "rng": rng}
    scores = [probe(model, **options)["induction"][place] for _ in range(PROMPTS)]
    return np.array(scores), float(np.mean(1 / np.arange(half + 1, 2 * half + 1)))


def _kinds(shown: xr.Dataset, axes: Any, words: str) -> None:
    names = np.array([kind.name for kind in KINDS])[shown.kind.to_numpy().astype(int)]
    plot_kinds(shown.assign(kind=("item", names)), {kind.name: kind.title for kind in KINDS}, axes)
    axes.set_title(f"kinds of heads, {words}")


def _spectrum(head: xr.Dataset, axes: Any, words: str) -> None:
    share = 1 - head.level.to_numpy()[ENDS]
    low, own, high = (head[name].to_numpy()[ENDS] for name in ("null_low", "spectrum", "null_high"))
    axes.fill_between(share, low, high, color=BARS, lw=0, label="random weights, 5 % to 95 %")
    axes.plot(share, own, color=SIMULATION, lw=1, label="head")
    axes.set(yscale="log", xlabel="share of the values, largest first", ylabel="singular value")
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(f"layer {int(head['layer'])}, head {int(head['head'])}, {words}")
    axes.legend(loc="lower left")
