"""Runs at rates that are too high, and what their scores said in the first fifth (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from bulkedge.lab.studies.base import NO_NUMBER, Claim, Claims, Estimate, Study, sign, track
from bulkedge.models.watching.alarms import BEYOND
from bulkedge.plots.style import COLOURS, panels
from bulkedge.propagation.trainability import freezing_beta
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.support.threads import one_thread

LAYERS, HEADS, WIDTH = 3, 4, 96
LONG = 300
"""Steps after which a run has ended: before, QK-norm is still behind at the high rate, whatever it wins later."""
WAYS = ("low", "middle", "high", "high, QK-norm")


@dataclass(frozen=True)
class HeadsWatch(Study):
    """If the learning rate is too high, scores run away in the first fifth of a run; in healthy runs they do not.

    A decoder of three layers and four heads learns letters, with Adam at three rates and without QK-norm, and at the
    highest rate with it. Spreads of scores are read by :func:`bulkedge.watch`. Its alarm of a runaway is raised when
    half of the heads of a layer are beyond eight times the spread that freezes rows, and still grow.
    """

    requires = ("torch", "transformers")

    seeds: int = parameter(Integers(2, 40), "runs at each rate", 8, ours=10)
    steps: int = parameter(Integers(10, 2000), "steps of Adam", 80, ours=400)
    tokens: int = parameter(Integers(16, 512), "letters of a sequence", 64, ours=128)
    batch: int = parameter(Integers(1, 64), "sequences of a step", 2, ours=4)
    every: int = parameter(Integers(1, 100), "steps from one reading to the next", 4, ours=10)
    low: float = parameter(Interval(1e-5, 1.0), "learning rate of Adam", 0.003, ours=0.003)
    middle: float = parameter(Interval(1e-5, 1.0), "a higher rate", 0.01, ours=0.01)
    high: float = parameter(Interval(1e-5, 1.0), "a rate that is too high", 0.05, ours=0.03)
    small = {"seeds": 6, "steps": 10, "tokens": 32, "every": 1, "high": 0.3}
    caption = """Training losses (left) and the largest score scale β (right) of all runs over steps, with
    the mean of each rate drawn thick. At too high a rate β crosses the dashed line early, where triangles mark the
    alarm, while healthy runs stay below it."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train and watch all runs."""
        seeds = [int(each) for each in rng.integers(2**62, size=self.seeds)]
        plan = [(seed, way) for seed in seeds for way in range(len(WAYS))]
        with one_thread(("torch",)):
            found = [self._trained(seed, way) for seed, way in track(plan, "runs")]
        shape = (self.seeds, len(WAYS))
        names = {"loss": "step", "beta": "reading", "typical": "reading", "end": None, "alarm": None, "alarms": None}
        data = {}
        for name, axis in names.items():
            values = np.array([each[name] for each in found])
            data[name] = (("seed", "way", *([axis] if axis else [])), values.reshape(*shape, *values.shape[1:]))
        coords = {"way": list(WAYS), "step": np.arange(self.steps), "reading": np.arange(0, self.steps, self.every)}
        rates = ("way", [self.low, self.middle, self.high, self.high])
        freezing = {"freezing": freezing_beta(self.tokens)}
        return xr.Dataset(data, coords | {"rate": rates}, attrs=freezing)

    def statements(self, data: xr.Dataset) -> Claims:
        """How spreads grow with the rate, that the alarm is early and not false, and what the remedy wins back."""
        first = np.log(data.typical.sel(reading=slice(1, self.steps / 8))).mean("reading")
        powers = (first.sel(way="high") - first.sel(way="low")) / np.log(self.high / self.low)
        text = (
            "power of the rate with which the spread of half of the heads of a layer grows, in the first "
            "eighth of the run, above one"
        )
        rival = "in proportion, as if queries or keys alone moved", 1.0
        yield Claim(text, "ours", powers, 1.0, rival, relation=">=", one_sided=NO_NUMBER)
        # part of a run in which a warning is early
        early = data.alarm.sel(way="high").values <= 0.2 * self.steps
        yield _share("share of runs at the high rate with an alarm of a runaway in their first fifth", early, 1.0)
        raised = np.isfinite(data.alarm.sel(way="low").values)
        yield _share("share of runs at the low rate with such an alarm at any time", raised, 0.0)
        if self.steps >= LONG:
            yield from self._at_the_end(data)

    @staticmethod
    def _at_the_end(data: xr.Dataset) -> Claims:
        """What is claimed of runs that have ended."""
        midway = (data.end.sel(way="low") + data.end.sel(way="high")) / 2
        raised = np.isfinite(data.alarm.sel(way="middle").values)
        yield _share("share of runs at the middle rate with such an alarm at any time", raised, 1.0)
        text = (
            "how far below the middle of the losses at the low and the high rate QK-norm brings the high "
            "one, in nats, on text that was not learnt"
        )
        yield sign(text, "ours", midway - data.end.sel(way="high, QK-norm"), "it wins back less than half")

    def _trained(self, seed: int, way: int) -> dict[str, Any]:
        """One run: its losses, spreads, alarm and end."""
        import torch

        from bulkedge.models import watch

        learnt, held_out = texts()
        model, generator = decoder(seed, self.tokens), torch.Generator().manual_seed(seed)
        if way == len(WAYS) - 1:
            _normalised(model)
        adam = torch.optim.Adam(model.parameters(), lr=(self.low, self.middle, self.high, self.high)[way])

        losses = []
        with watch(model.train(), every=self.every) as watched:
            for _ in range(self.steps):
                adam.zero_grad()
                loss = loss_of(model, batch_of(learnt, self.batch, self.tokens, generator))
                loss.backward()
                adam.step()
                losses.append(loss.detach())
        with torch.no_grad():
            end = [
                float(loss_of(model, text[: len(text) // self.tokens * self.tokens].view(-1, self.tokens)))
                for text in held_out
            ]
        beta = watched.data.beta
        runaway = [each.step for each in watched.alarms if each.kind == "runaway"]
        return {
            "loss": torch.stack(losses).numpy(),
            "beta": beta.max(("layer", "head")).values,
            "typical": beta.median("head").max("layer").values,
            "end": np.mean(end),
            "alarm": min(runaway, default=np.nan),
            "alarms": sum(each.grade == "alarm" for each in watched.alarms),
        }

    def figure(self, data: xr.Dataset) -> Figure:
        figure, (axes,) = panels(1, 2, width=3.8, height=3.0)
        loss, spreads = axes
        smooth = max(1, data.sizes["step"] // 20)
        running = data.loss.rolling(step=smooth, min_periods=1).mean()
        for n, way in enumerate(data.way.values):
            rate = f"rate {float(data.rate.sel(way=way)):g}" + (", QK-norm" if "QK" in str(way) else "")
            for axis, curves, x in ((loss, running, "step"), (spreads, data.beta.clip(min=1e-2), "reading")):
                mine = curves.sel(way=way)
                axis.plot(data[x], mine.transpose(x, "seed"), color=COLOURS[n], lw=0.5, alpha=0.5)
                mean = mine.mean("seed") if axis is loss else np.exp(np.log(mine).mean("seed"))
                axis.plot(data[x], mean, color=COLOURS[n], lw=1.6, label=rate)
            alarms = data.alarm.sel(way=way).values
            alarmed = [
                (step, float(data.beta.sel(way=way).isel(seed=k).sel(reading=step)))
                for k, step in enumerate(alarms)
                if np.isfinite(step)
            ]
            if alarmed:
                spreads.plot(*zip(*alarmed, strict=True), "^", color=COLOURS[n], mec="black", mew=0.5, ms=5, zorder=4)
        spreads.plot([], [], "^", color="white", mec="black", mew=0.5, ms=5, label="runaway alarm")
        freezing = data.attrs["freezing"]
        spreads.axhline(freezing, color="0.2", ls="--", lw=0.9, label="rows freeze")
        spreads.axhline(BEYOND * freezing, color="0.2", ls=":", lw=0.9, label=f"{BEYOND:g} times that")
        loss.set(xlabel="step", ylabel="loss in training (nats)")
        spreads.set(yscale="log", xlabel="step", ylabel=r"largest $\beta$ of 12 heads")
        spreads.yaxis.set_major_locator(LogLocator(10))
        spreads.yaxis.set_minor_formatter(NullFormatter())
        for axis in axes:
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        loss.legend(loc="upper right")
        spreads.legend(loc="lower right", handles=spreads.get_legend_handles_labels()[0][-3:])
        sizes = f"{self.seeds} runs a rate, {self.tokens} letters"
        figure.suptitle(f"A decoder of three layers, width 96, Adam: {sizes}", fontsize=8)
        return figure


def _share(statement: str, happened: Any, predicted: float) -> Claim:
    """That something happens in all runs, or in none, and not in half of them."""
    rival = ("half of them", 0.5)
    return Claim(statement, "ours", _frequency(happened), predicted, rival)


def _frequency(happened: Any) -> Estimate:
    """Share of independent runs; its error is that at the mean of Jeffreys' posterior, which is never zero."""
    count, runs = int(np.sum(happened)), len(happened)
    chance = (count + 0.5) / (runs + 1)
    return Estimate(count / runs, float(np.sqrt(chance * (1 - chance) / runs)))


def loss_of(model: Any, windows: Any) -> Any:
    """Mean loss of a model that reads windows of letters."""
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=windows).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten())


@cache
def texts() -> tuple[list[Any], list[Any]]:
    """Letters of the texts of the package: those that are learnt, and those that are held out."""
    from bulkedge.models.loading.default import letters, text_codes

    return text_codes(letters())


def batch_of(texts: list[Any], sequences: int, tokens: int, generator: Any) -> Any:
    """Windows of the texts in turn, from random places."""
    import torch

    chosen = [texts[row % len(texts)] for row in range(sequences)]
    starts = [int(torch.randint(len(text) - tokens + 1, (), generator=generator)) for text in chosen]
    return torch.stack([text[start : start + tokens] for text, start in zip(chosen, starts, strict=True)])


def decoder(seed: int, tokens: int) -> Any:
    """A decoder at its start, without dropout; torch's own random numbers go on as if it had drawn none."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from bulkedge.models.loading.default import ALPHABET

    made: Any = GPT2LMHeadModel
    configuration: Any = GPT2Config
    shape = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": tokens, "vocab_size": len(ALPHABET)}
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return made(configuration(**shape, **none, bos_token_id=None, eos_token_id=None))


def _normalised(model: Any) -> None:
    """Queries and keys of a model at length one for each dimension, in the mean square (QK-norm without weights)."""
    from bulkedge.nn import apply_patch, transform

    def unit(rows: Any) -> Any:
        return rows * (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    @transform("qk_norm")
    def _(call: Any, parameters: Any) -> Any:  # noqa: ARG001 - it has none
        return call._replace(query=unit(call.query), key=unit(call.key))

    apply_patch(model, "qk_norm")
