"""A decoder that looks names up, at eight times the tokens of its training, with factors on its scores (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.heads import Channel
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, sign, track
from bulkedge.lab.studies.heads import READINGS, factors_of, losses_over
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.arrays import Index, as_numpy
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.support.threads import one_thread

LAYERS, HEADS, WIDTH = 2, 4, 64
VALUES, CONCENTRATION = 16, 0.3
"""Values that a name may have, and the concentration of their shares (Dirichlet) in a sequence: of sixteen values a few
are frequent, and one does better than chance for a name that was never told."""
SHORTEST = 16
"""Tokens of the first sequences of the training, which grow to the whole context in its first half."""
BATCH, MEASURED = 1024, 16
"""Tokens of a step, and sequences from which heads are measured."""
WARM_UP, COOL_DOWN = 20, 0.3
"""Steps over which the rate of Adam rises, and the share of all steps over which it falls to zero."""
QUESTIONS = ("told", "stranger")
NOTHING = -100
"""Label of what is not asked, as torch has it."""


class Sequences(NamedTuple):
    """Names, values (:data:`VALUES` for a question), answers, and who is a stranger: (rows, tokens) each."""

    names: Index
    values: Index
    answers: Index
    stranger: Any


TITLES = {"told": "names that were told: one key to find", "stranger": "strangers: all keys to weigh"}


@dataclass(frozen=True)
class HeadsLonger(Study):
    """A longer context costs a decoder what it looks up by content; multiplying its scores wins part of it back.

    Half of the tokens of a sequence say the value of a name, each of its own; the others ask for one: of a name that
    was told, which one key in all the context answers, or of a stranger, for which the frequent values are the best
    guess. The decoder (two layers of four heads) has no positions. So nothing about the longer sequence is new to it
    but the number of keys, and its questions need no order. With rotary positions angles that were never seen spoil the
    reading first, which no score scale mends (``heads/score-scales`` shows that).
    """

    requires = ("torch", "transformers")

    context: int = parameter(Integers(16, 1024), "tokens that the decoders are trained on", 256, ours=256)
    longer: int = parameter(Integers(2, 32), "how many times as many they read", 8, ours=8)
    steps: int = parameter(Integers(1, 10**4), "steps of Adam, of 1024 tokens each", 250, ours=800)
    rate: float = parameter(Interval(1e-5, 1.0), "learning rate", 0.006, ours=0.006)
    decoders: int = parameter(Integers(2, 100), "decoders, each from weights of its own", 5, ours=8)
    sequences: int = parameter(Integers(2, 1000), "sequences that each decoder reads", 12, ours=32)
    small = {"context": 16, "steps": 40, "rate": 0.01, "decoders": 2, "sequences": 16}
    caption = """Loss by position for two kinds of question (left, middle), and the factors of all heads
    by their β (right), a colour for each way of reading. Compare the ways right of the dashed line, where decoders
    read more than they were trained on."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train decoders, measure their heads at their own context, and read on with the factors of each reading."""
        with one_thread(("torch",)):
            found = [self._decoder(rng) for _ in track(range(self.decoders), "decoders")]
        losses, factors, betas = (np.array(each) for each in zip(*found, strict=True))
        return dataset(
            loss=(("decoder", "reading", "question", "position", "sequence"), losses, {"units": "nats"}),
            factor=(("decoder", "reading", "layer", "head"), factors, "factor on the scores"),
            spread=(("decoder", "layer", "head"), betas, "β of a head at its own context"),
            coords={
                "reading": list(READINGS),
                "question": list(QUESTIONS),
                "position": ("position", self._ends(), {"long_name": "tokens before the question, up to"}),
            },
        )

    def _ends(self) -> list[int]:
        """Last positions of the stretches that losses are means over: half the context, all of it, and doubled."""
        whole = self.context * self.longer
        doubled = [self.context // 2 * 2**k for k in range(8) if self.context // 2 * 2**k < whole]
        return [*doubled, whole]

    def _decoder(self, rng: np.random.Generator) -> tuple[Real, Real, Real]:
        """Losses of a decoder, (readings, questions, positions, sequences), its factors, and its heads' spreads."""
        decoder = _Decoder.trained(self, rng)
        channels = decoder.channels(_sequences(rng, MEASURED, self.context, self.longer * self.context))
        factors = factors_of(channels, self.context, self.longer * self.context)
        text = _sequences(rng, self.sequences, self.longer * self.context, self.longer * self.context)
        losses = [_by_position(decoder.losses(text, each), text, self._ends()) for each in factors]
        return np.array(losses), factors, np.array([each.beta for each in channels])

    def statements(self, data: xr.Dataset) -> Claims:
        """What the longer context costs, what factors win back of it, and what they cost elsewhere."""
        loss = data.loss.rename(sequence="draw")
        told, stranger = (loss.sel(question=each, position=loss.position[-1]) for each in QUESTIONS)
        known = loss.sel(question="told", position=self.context, reading=READINGS[0])
        plain, best = told.sel(reading=READINGS[0]), READINGS[-1]
        names, ends = "loss of told names", "at the end of the longer context"
        own = "minus that at the end of the decoders' own without a factor"
        yield _sign(f"{names} {ends} without a factor, {own}", plain - known, ">=", "it costs nothing")
        yield _sign(f"{names} {ends} with {best}, {own}", told.sel(reading=best) - known, ">=", "all is won back")
        inside = loss.sel(question="told", position=self.context)
        for each in READINGS[1:]:
            won, lost = (both.sel(reading=each) - both.sel(reading=READINGS[0]) for both in (told, stranger))
            beyond = won - (inside.sel(reading=each) - known)
            change = f"{each}, minus that without a factor"
            yield _sign(f"{names} {ends}: {change}", won, "<=", "no help")
            yield _sign(f"{names} {ends}, more than in their own: {change}", beyond, "<=", "heads are as flat there")
            yield _sign(f"loss of strangers {ends}: {change}", lost, ">=", "no harm")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, (axes,) = panels(1, 3, width=3.3, height=3.0)
        for panel, question in zip(axes, data.question.values, strict=False):
            losses_over(panel, data.position.values, data.loss.sel(question=question), 1.05)
            panel.axvline(self.context, color="0.6", lw=0.8, ls="--", zorder=1)
            panel.set(xlabel="position of the question, up to", ylabel="loss, nats")
            panel.set_title(TITLES[str(question)], fontsize=8)
        axes[0].legend(loc="upper left", fontsize=6, frameon=True, framealpha=1, edgecolor="none")
        axes[0].set_ylim(0, 1.35 * float(data.loss.sel(question="told").mean(["decoder", "sequence"]).max()))
        heads = axes[2]
        for number, reading in enumerate(data.reading.values):
            x, y = (each.values.ravel() for each in xr.broadcast(data.spread, data.factor.sel(reading=reading)))
            heads.plot(x, y, "o", ms=2.5, alpha=0.6, color=COLOURS[number])
        heads.set(xlabel="β of a head at its own context", ylabel="factor on its scores", ylim=(0.9, None))
        heads.set_title("factors of all heads", fontsize=8)
        figure.suptitle(
            f"{self.decoders} decoders without positions, trained on {self.context} tokens ({self.steps} "
            f"steps), reading {self.context * self.longer}; {self.sequences} sequences each"
        )
        return figure


def _sign(statement: str, difference: xr.DataArray, relation: Any, rival: str) -> Claim:
    """A difference between paired losses of these decoders is on one side of zero."""
    return sign(statement, "ours", difference, rival, relation)


def _sequences(rng: np.random.Generator, rows: int, tokens: int, names: int) -> Sequences:
    """Sequences of a world of so many names, none of which is told twice."""
    order = np.array([rng.choice(names, tokens, replace=False) for _ in range(rows)])
    share = np.maximum(rng.gamma(CONCENTRATION, size=(rows, VALUES)), 1e-9)
    levels = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)[:, None, :-1]
    kind = rng.random((rows, tokens))
    told, stranger = kind < 0.5, kind >= 0.75
    told[:, 0], stranger[:, 0] = True, False
    before = np.cumsum(told, axis=1)
    earlier = (rng.random((rows, tokens)) * before).astype(int)
    # names that are told are taken from the front of the order, strangers from its end
    which = np.where(told, before - 1, np.where(stranger, tokens - np.cumsum(stranger, axis=1), earlier))
    values = np.sum(levels < rng.random((rows, tokens, 1)), axis=2)
    answers = np.take_along_axis(values, which, axis=1)
    return Sequences(
        np.take_along_axis(order, which, axis=1),
        np.where(told, answers, VALUES),
        np.where(told, NOTHING, answers),
        stranger,
    )


class _Decoder(NamedTuple):
    """A decoder of transformers without positions, and what its tokens are made of and answers are read from."""

    model: Any
    name: Any
    value: Any
    answer: Any

    @classmethod
    def start(cls, names: int, seed: int) -> _Decoder:
        """Random weights; torch's own random numbers go on afterwards as if it had drawn none."""
        import torch
        from transformers import SmolLM3Config, SmolLM3Model

        model: Any = SmolLM3Model
        config = SmolLM3Config(
            vocab_size=1,  # tokens come as vectors
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            no_rope_layers=[0] * LAYERS,  # a zero takes the positions away
            initializer_range=WIDTH**-0.5,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parts = model(config), torch.nn.Embedding(names, WIDTH), torch.nn.Embedding(VALUES + 1, WIDTH)
            made = cls(*parts, torch.nn.Linear(WIDTH, VALUES))
        made.name.weight.requires_grad = False  # names are random and stay so: all are equally well known
        return made

    @classmethod
    def trained(cls, study: HeadsLonger, rng: np.random.Generator) -> _Decoder:
        """A decoder after its training, on sequences that grow to the context."""
        import torch

        names = study.longer * study.context
        made = cls.start(names, int(rng.integers(2**62)))
        weights = [each for part in made for each in part.parameters() if each.requires_grad]
        adam = torch.optim.Adam(weights, betas=(0.9, 0.98))
        for step in track(range(study.steps), "steps"):
            left = (study.steps - step) / (COOL_DOWN * study.steps)
            adam.param_groups[0]["lr"] = study.rate * min(1, (step + 1) / WARM_UP, left)
            time = (step + 0.5) / study.steps
            tokens = int(min(study.context, SHORTEST * (study.context / SHORTEST) ** (2 * time)))
            text = _sequences(rng, BATCH // tokens, tokens, names)
            adam.zero_grad()
            made._loss(text, "mean").backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            adam.step()
        made.model.eval()
        return made

    def vectors(self, text: Sequences) -> Any:
        """Tokens as the model takes them: (rows, tokens, width)."""
        import torch

        return self.name(torch.from_numpy(text.names)) + self.value(torch.from_numpy(text.values))

    def _loss(self, text: Sequences, reduction: str) -> Any:
        import torch

        scores = self.answer(self.model(inputs_embeds=self.vectors(text)).last_hidden_state).transpose(1, 2)
        answers = torch.from_numpy(text.answers)
        return torch.nn.functional.cross_entropy(scores, answers, ignore_index=NOTHING, reduction=reduction)

    def losses(self, text: Sequences, factors: Real) -> Real:
        """Loss of every token, zero where nothing is asked, with the scores multiplied: (rows, tokens)."""
        import torch

        from bulkedge.nn import scale_scores

        with torch.no_grad(), scale_scores(self.model, factors):
            parts = [
                self._loss(Sequences(*(each[row : row + 1] for each in text)), "none") for row in range(len(text.names))
            ]
        return as_numpy(torch.cat(parts)).astype(float)

    def channels(self, text: Sequences) -> list[Channel]:
        """The channel of each layer, from the queries and keys of all sequences."""
        import torch

        from bulkedge.models import capture

        with torch.no_grad():
            layers = capture(self.model, inputs_embeds=self.vectors(text))
        return [Channel.from_qk(_together(each.query), _together(each.key), each.scale) for each in layers]


def _together(vectors: Any) -> Any:
    """Tokens of all sequences side by side: from (rows, heads, tokens, d) to (heads, rows * tokens, d)."""
    return vectors.transpose(0, 1).flatten(1, 2).double()


def _by_position(losses: Real, text: Sequences, ends: list[int]) -> Real:
    """Mean losses of stretches that end there, by question: (questions, positions, rows); nan where none was asked."""
    asked = text.answers != NOTHING
    starts = [ends[0] // 2, *ends[:-1]]
    found = np.full((len(QUESTIONS), len(ends), len(losses)), np.nan)
    for number, which in enumerate((asked & ~text.stranger, asked & text.stranger)):
        for column, (start, end) in enumerate(zip(starts, ends, strict=True)):
            counts = which[:, start:end].sum(axis=1)
            sums = np.sum(np.where(which, losses, 0.0)[:, start:end], axis=1)
            found[number, column] = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return found
