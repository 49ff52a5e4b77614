"""Read every head of a model on some texts: what it does, and how sure we are, compared with random weights.

One forward pass a text. Layer by layer, heads are measured (:mod:`bulkedge.heads.measures.attention_measures`),
predicted from the moments of their queries and keys (:func:`predict`), and compared with random heads on the same
inputs (:mod:`bulkedge.models.scanning.random_heads`). Memory is bounded by one layer.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, cross_entropy

from bulkedge.heads import CausalChannel, Channel, score_scales
from bulkedge.heads.measures.attention_measures import measure_heads
from bulkedge.heads.measures.layer_visibility import FEWEST
from bulkedge.heads.softmax import mean_rows
from bulkedge.models.hooks.attention_hooks import observe
from bulkedge.models.hooks.attention_inputs import AttentionLayer, with_sinks
from bulkedge.models.hooks.capture import HeadScores, Visit, map_heads, stream
from bulkedge.models.hooks.gates import GateFinder, OutputReader
from bulkedge.models.loading.packaged import sample_text
from bulkedge.models.scanning.importance import Material
from bulkedge.models.scanning.passages import (
    CalledModel,
    Passage,
    check_tokens,
    cut_to_positions,
    inner_model,
    model_inputs,
    on_device,
    sequences,
    token_facts,
    vocabulary_size,
)
from bulkedge.models.scanning.probing import ordinary_tokens
from bulkedge.models.scanning.probing import probe as probe_heads
from bulkedge.models.scanning.random_heads import (
    COORDINATE,
    FLATTEST,
    deviations,
    draw_random_heads,
    no_deviations,
)
from bulkedge.models.scanning.results import FAILURES, LONGER, OUTPUT, Noted, Reading, Scan, assemble
from bulkedge.nn.patching.interface import unwrap
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import FLAG, Each, Integers, Text, takes
from bulkedge.support.errors import DomainError, RegimeWarning, UnresolvedError
from bulkedge.support.progress import tell
from bulkedge.support.random import seeded
from bulkedge.support.threads import shared

USUAL = 512  # tokens of a text that are read by default; a scan that asks for more warns where there are fewer
PICTURE = 48  # rows and columns of the picture of an attention matrix


@takes(layers=Each(Integers(0, 10**6)), probe=FLAG, importance=FLAG, title=Text())
def scan(  # noqa: PLR0913 - what a scan can be asked, one by one
    model: Any = None,
    inputs_or_texts: Any = None,
    *,
    tokenizer: Any = None,
    tokens: int = USUAL,
    layers: Iterable[int] | None = None,
    draws: int = 19,
    probe: bool = True,
    importance: bool = False,
    forward: Callable[[Any, dict[str, Any]], Any] | None = None,
    device: Any = None,
    title: str = "",
    rng: Any = 0,
) -> Scan:
    """Scan the heads of a model.

    Parameters
    ----------
    model : torch.nn.Module or str, optional
        A transformers model, or any module whose attention is ``torch.nn.MultiheadAttention``, or that calls torch's
        ``scaled_dot_product_attention`` or ``flex_attention``; also inside of a wrapper. Or what
        :func:`bulkedge.models.load_model` takes: a folder, a file, a hub id, ``"minilm"``. By default a small decoder
        that is trained on the spot.
    inputs_or_texts : optional
        Texts, token ids, images, or inputs of the model by name. By default the opening of a book. Of several, a scan
        has medians, and how far they agree.
    tokenizer : callable, optional
        For texts; that of the loaded model by default.
    tokens : int, optional
        How many tokens of each text are read at most. Beyond 4096 nothing of the size tokens by tokens is formed: rows
        are read in blocks, and spectra estimated from products, with their error in ``spectrum_error``
        (:mod:`bulkedge.heads.measures.singular_values`).
    layers : iterable of int, optional
        Which attention modules, in the order in which they are called; all by default.
    draws : int, optional
        Number of random heads a layer, for the null; none makes no p-values, and is six times as fast.
    probe : bool, optional
        Whether to look for induction, duplicate and previous-token heads on repeated random tokens, where the model
        reads tokens.
    importance : bool, optional
        Whether to ask what predictions lose without each head: a backward pass for each of 64 drawn labels of the
        texts, and for as many of copied random tokens where the model is a decoder.
    forward : callable, optional
        How to call the model, ``forward(model, inputs)`` with inputs by name, where ``model(**inputs)`` will not do.
        What it returns has ``logits``, or is a tensor.
    device : optional
        Where to run; where the model is by default.
    title : str, optional
        What to call the model; by default what it calls itself.
    rng : int, numpy.random.Generator, optional
        Seed of the random weights and of the probe.

    Returns
    -------
    Scan
        A row a head: ``.table``, ``.summary()``, ``.warnings``, ``.to_html(path)``.

    Raises
    ------
    DomainError
        If nothing can be read, no attention is seen, or more than 90 % of the tokens are unknown to the tokenizer.

    Warns
    -----
    RegimeWarning
        If more than the usual number of tokens was asked for, and no text has as many; or if the model has no positions
        for as many as there are.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> found = scan(layer, {"src": torch.randn(1, 40, 16)}, draws=0)
    >>> found.table.index.size
    2
    """
    tokens, draws = check_sizes(tokens, draws)
    rng = seeded(rng)
    model, tokenizer, own_title = _load(model, tokenizer)
    passages = sequences(
        _default_text(model, tokenizer) if inputs_or_texts is None else inputs_or_texts, tokenizer, tokens
    )
    longest = max(each.length for each in passages)
    if max(USUAL, longest) < tokens and longest:
        warnings.warn(
            f"tokens = {tokens}, but the longest text has {longest}: no more were read", RegimeWarning, stacklevel=2
        )
    whole = model
    model = inner_model(model, passages) if forward is None else CalledModel(model, forward)
    passages = cut_to_positions(model, passages)
    size = vocabulary_size(model)
    check_tokens(passages, tokenizer, size)
    with shared(("on a device", id(model)), lambda: on_device(model, device)):
        reader = _Reader(model, tokenizer, None if layers is None else frozenset(layers), draws, rng)
        readings = [reader.read(passage) for passage in passages]
        probes = _probe(model, tokenizer, rng) if probe and "input_ids" in passages[0].inputs else None
        first = readings[0]
        seeds = tuple(rng.integers(2**63, size=2).tolist())
        material = Material(model, tokenizer, passages, all(first.causal), reader.outputs.gates, first.names, seeds)
        worth = reader.importance(material, first) if importance else {}
    attributes = {
        "model": title or own_title,
        "architecture": type(unwrap(whole)).__name__,
        "tokens": max(reading.tokens for reading in readings),
        "draws": draws,
    }
    if size is not None and hasattr(tokenizer, "__len__"):
        attributes |= {"vocabulary": size, "tokenizer_vocabulary": len(tokenizer)}
    attributes["shown_tokens"] = json.dumps(_shown_tokens(passages[0], tokenizer))
    data = assemble(readings, probes, attributes, worth)
    return Scan(data, tuple(first.random_heads), model if forward is None else whole, material)


def _shown_tokens(passage: Passage, tokenizer: Any) -> list[str]:
    """The first token of every row of a picture, in letters; none where these are not tokens, or have no letters."""
    ids = passage.inputs.get("input_ids")
    if ids is None or ids.ndim != 2 or not hasattr(tokenizer, "decode"):
        return []
    size = min(PICTURE, ids.shape[1])
    starts = np.arange(PICTURE) * size // PICTURE * ids.shape[1] // size
    return [str(tokenizer.decode([each])) for each in ids[0, starts].tolist()]


def check_sizes(tokens: int, draws: int) -> tuple[int, int]:
    """Refuse sizes that a scan cannot have."""
    tokens, draws = Integers(16, 2**15).check("tokens", tokens), Integers(0, 10_000).check("draws", draws)
    if 0 < draws < 5:
        raise DomainError(f"draws = {draws} random heads have no spread to speak of: 5 or more, or 0 for none")
    return tokens, draws


class _Reader:
    """Reads one text after another with one model."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, wanted: frozenset[int] | None, draws: int, rng: np.random.Generator
    ) -> None:
        self.model, self.tokenizer, self.wanted, self.draws = model, tokenizer, wanted, draws
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        self.total: int | None = None
        self.outputs = OutputReader(None)

    def read(self, passage: Passage) -> Reading:
        """One forward pass, and what its layers show."""
        inputs = model_inputs(self.model, passage.inputs)
        if self.total is None:
            self.total = self._count(model_inputs(self.model, passage.cut(8).inputs))
        reading = Reading(passage.title, facts=token_facts(passage, self.tokenizer))
        label = f"layers of {passage.title!r}"
        tell(label, 0, self.total)

        calls: list[str] = []

        def visit(each: Visit) -> None:
            place = len(calls)
            calls.append(each.layer.name)
            if self.wanted is None or place in self.wanted:
                self.outputs.paused = True
                self._layer(each, place, passage, reading)
                self.outputs.paused = False
                tell(label, len(reading.names), self.total or 0)

        with self.outputs.reading():
            answer = stream(self.model, visit, **inputs)
        for place, found in zip(reading.indices, reading.measures, strict=True):
            found.update(self._outputs(calls[place], calls[:place].count(calls[place]), len(found["beta"])))
        with reading.noted("loss", [], None):
            reading.facts |= _loss(self.model, answer, passage)
        return reading

    def _outputs(self, module: str, call: int, heads: int) -> dict[str, Real]:
        """What the heads of a module added to the residual stream in one of its calls; nan where that was not read."""
        read = self.outputs.columns(module, call)
        if not read:
            return {name: np.full(heads, np.nan) for name in OUTPUT} | {"mean_output": np.full((heads, 1), np.nan)}
        return {name: as_numpy(read[name]).astype(float) for name in (*OUTPUT, "mean_output")}

    def importance(self, material: Material, first: Reading) -> dict[str, Real]:
        """Columns of what heads are worth, in the order of the heads that were read; nan where that cannot be had."""
        with first.noted("importance", [], None):
            if material.gates is None:
                raise DomainError("the model's heads do not meet in a linear projection that follows its attention")
            found = material.importance()
            found["key_head"] = np.concatenate(
                [np.arange(site.heads) * site.key_heads // site.heads for site in material.gates.sites]
            )
            return {name: each[..., material.items] for name, each in found.items()}
        count = sum(len(each["beta"]) for each in first.measures)
        return {name: np.full(count, np.nan) for name in ("importance", "importance_error")}

    def _count(self, inputs: dict[str, Any]) -> int:
        """Number of layers that will be read, from a pass over a few tokens."""
        seen: list[str] = []
        finder = GateFinder(self.model)
        with observe(finder):
            stream(self.model, lambda visit: seen.append(visit.layer.name), **inputs)
        self.outputs = OutputReader(finder.gates() if finder.sites else None)
        if self.wanted is None:
            return len(seen)
        beyond = [each for each in self.wanted if each not in range(len(seen))]
        if beyond or not self.wanted:
            raise DomainError(f"layers = {sorted(self.wanted, key=str)}: the model has {len(seen)}, numbered from 0")
        return len(self.wanted)

    def _layer(self, visit: Visit, place: int, passage: Passage, reading: Reading) -> None:
        layer, noted = visit.layer, partial(reading.noted, layer=place)
        ids = None if layer.cross else passage.ids(layer.name, layer.key.shape[2])
        ids = ids if ids is None else ids.to(layer.query.device)
        found = measure_layer(layer, ids)
        self._compare(visit, ids, found, reading, noted)
        reading.names.append(layer.name)
        reading.indices.append(place)
        reading.causal.append(layer.causal)
        reading.tokens = max(reading.tokens, layer.key.shape[2])
        reading.pictures.append(found.pop("picture"))
        reading.measures.append(found | predict(layer, found["columns"], noted))
        rank = cosine = np.nan
        with noted("token_stable_rank", []):
            rank, cosine = _token_similarity(visit.inputs)
        reading.token_stable_rank.append(rank)
        reading.token_cosine.append(cosine)

    def _compare(self, visit: Visit, ids: Any, found: dict[str, Real], reading: Reading, noted: Noted) -> None:
        """Hold the heads of a layer against random ones."""
        betas, null = found[COORDINATE], None
        away = no_deviations(len(betas))
        if self.draws:
            with noted("p", range(len(betas))):
                if visit.layer.key.shape[2] < 2:
                    raise UnresolvedError("all attention to one token is alike")
                null = draw_random_heads(visit, ids, betas, self.draws, self.generator)
                away = deviations(found, null)
            with noted("p", np.flatnonzero(betas < FLATTEST).tolist()):
                if np.any(betas < FLATTEST):
                    raise UnresolvedError(f"their attention is uniform but for rounding (β below {FLATTEST:g})")
            reading.random_heads.append(null)
        reading.deviations.append(away)


def measure_layer(layer: AttentionLayer, ids: Any) -> dict[str, Real]:
    """Measures and pictures of the heads of a layer."""

    def read(scores: HeadScores) -> dict[str, Any]:
        # products in double precision do not overflow, if those of the largest entries do not
        largest = [each.abs().amax() for each in scores.factors]
        if not bool((largest[0] * largest[1] * scores.factors[0].shape[-1]).isfinite()):
            raise DomainError(
                f"{layer.name}: scores are not all finite; if the model runs in half precision, try single"
            )
        factors = scores.factors if layer.softcap is None else None  # capped scores are no products
        found = measure_heads(
            scores.content,
            visibility=scores.visibility,
            factors=factors,
            sink_scores=scores.sinks,
            operator=scores.operator(),
        )
        return found | {"picture": _picture(scores)}

    parts = map_heads(read, layer, ids)
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def _picture(scores: HeadScores) -> np.ndarray[Any, Any]:
    """Small pictures of attention matrices: means over blocks, on a square-root scale, 255 for the largest."""
    size = tuple(min(PICTURE, each) for each in scores.visibility.shape)

    def narrow(rows: slice) -> Tensor:
        added = scores.visibility.part(rows).added
        content = scores.content(rows) if added is None else scores.content(rows) + added
        return adaptive_avg_pool1d(with_sinks(content, scores.sinks), size[1])

    means = torch.cat([narrow(rows) for rows in scores.visibility.blocks], dim=1)
    means = adaptive_avg_pool1d(means.mT, size[0]).mT
    shades = (means / means.amax(dim=(1, 2), keepdim=True)).sqrt().mul(255).round()
    found = np.zeros((len(means), PICTURE, PICTURE), dtype=np.uint8)
    spread = [np.arange(PICTURE) * each // PICTURE for each in size]
    found[:] = as_numpy(shades).astype(np.uint8)[:, spread[0]][:, :, spread[1]]
    return found


def _token_similarity(inputs: Tensor) -> tuple[float, float]:
    """Stable rank of a layer's tokens, and their mean cosine."""
    vectors = inputs[0].double()
    gram = vectors.mT @ vectors if vectors.shape[0] > vectors.shape[1] else vectors @ vectors.mT
    largest = torch.linalg.eigvalsh(gram)[-1]
    rank = float(torch.trace(gram) / largest)
    unit = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    count = len(unit)
    return rank, float((unit.sum(0).square().sum() - count) / max(count * (count - 1), 1))


class HeadMoments:
    """Some heads of a layer, and their channels; what second moments do not explain of heads is structure."""

    def __init__(self, layer: AttentionLayer, columns: Real, heads: slice = slice(None)) -> None:
        self.layer, self.columns = layer, columns[heads]
        self.query, self.key = (each[0, heads].float() for each in (layer.query, layer.key))  # enough for predictions
        self.tokens = self.key.shape[1]
        self.is_causal = layer.causal and self.query.shape[1] == self.tokens and layer.softcap is None
        self.is_described = self.is_causal or (layer.mask is None and layer.visibility.alike and layer.softcap is None)

    @cached_property
    def channel(self) -> Channel:
        """The moments of queries and keys."""
        return Channel.from_qk(self.query, self.key, self.layer.scale)

    @cached_property
    def causal(self) -> CausalChannel:
        """The same, of blocks."""
        return CausalChannel.from_qk(self.query, self.key, self.layer.scale)

    def entropy(self) -> Real:
        """Mean entropy of the rows of which the entropy is measured."""
        if self.is_causal:
            return np.asarray(as_numpy(self.causal.entropy)[:, min(FEWEST, self.tokens) - 1 :].mean(axis=-1))
        return as_numpy(self.channel.rows(self.tokens).entropy)

    def popularity_correlation(self) -> Real:
        """Correlation of the logarithms of what keys get, predicted and measured."""
        found = as_numpy(self.causal.popularity if self.is_causal else self.channel.popularity(self.key))
        logs = [np.log(np.maximum(each, 1e-30)) for each in (found, self.columns)]
        logs = [each - each.mean(axis=-1, keepdims=True) for each in logs]
        norms = np.sqrt(np.prod([np.sum(each**2, axis=-1) for each in logs], axis=0))
        return np.divide(np.sum(logs[0] * logs[1], axis=-1), norms, out=np.full(len(norms), np.nan), where=norms > 0)

    def longer_entropy(self) -> Real:
        """Entropy of rows of longer contexts."""
        moments = self.channel.spread_moments
        return np.stack([mean_rows(*moments, times * self.tokens)[0] for times in LONGER], axis=-1)

    def scale(self) -> Real:
        """Factors on the scores that keep the entropy of rows in longer contexts."""
        heads = self.causal if self.is_causal else self.channel
        found = np.stack([score_scales(heads, self.tokens, times * self.tokens) for times in LONGER], axis=-1)
        return np.where(found < 16, found, np.nan)  # what needs more is uniform but for noise


PREDICTIONS: dict[str, Callable[[HeadMoments], Real]] = {
    "coupling": lambda heads: as_numpy(heads.channel.couplings).max(axis=-1) ** 2,
    "effective_dim": lambda heads: as_numpy(heads.channel.effective_dim),
    "predicted_entropy": HeadMoments.entropy,
    "popularity_correlation": HeadMoments.popularity_correlation,
    "longer_entropy": HeadMoments.longer_entropy,
    "scale": HeadMoments.scale,
}
"""What the moments of queries and keys say of heads."""
OF_ALL_LAYERS = ("coupling", "effective_dim")
"""Of these, what is said of any layer; the others need rows that see all keys, or all before them, and no cap."""


def predict(layer: AttentionLayer, columns: Real, noted: Noted) -> dict[str, Real]:
    """What second moments of queries and keys explain of a layer's heads, nan for heads of which they say nothing."""
    whole, found, heads = HeadMoments(layer, columns), {}, len(columns)
    for name, prediction in PREDICTIONS.items():
        found[name] = np.full((heads, len(LONGER)) if name in ("longer_entropy", "scale") else heads, np.nan)
        if not whole.is_described and name not in OF_ALL_LAYERS:
            continue
        try:
            found[name][:] = prediction(whole)
        except FAILURES:
            for head in range(heads):  # one that fails is not to take the others with it
                one = slice(head, head + 1)
                with noted(name, [head]):
                    found[name][one] = prediction(HeadMoments(layer, columns, one))
    return found


# -- the model ---------------------------------------------------------------------------------------------------------


def _load(model: Any, tokenizer: Any) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and what to call it."""
    if model is None or isinstance(model, str):
        from bulkedge.models.loading.loader import load_model

        loaded, own, title = load_model(model)
        return loaded, tokenizer or own, title
    if not hasattr(model, "named_modules"):
        raise DomainError(f"model is a {type(model).__name__}; give a torch module, a path, or a name")
    path = getattr(getattr(model, "config", None), "name_or_path", "")
    return model, tokenizer, Path(path).name or type(model).__name__


def _default_text(model: Any, tokenizer: Any) -> str:
    if tokenizer is None:
        raise DomainError(
            f"{type(model).__name__} came without a tokenizer: give token ids, scan(model, ids), or the inputs that it "
            "is called with, scan(model, {'pixel_values': ...})"
        )
    return sample_text("alice")


def _loss(model: nn.Module, answer: Any, passage: Passage) -> dict[str, float]:
    """Loss of a causal language model on what it read, in nats a token, and that of a uniform guess."""
    logits, ids = getattr(answer, "logits", None), passage.inputs.get("input_ids")
    if not type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel")) or logits is None or ids is None:
        return {}
    following = ids[0, 1:].to(logits.device)
    total = sum(
        float(cross_entropy(rows.float(), right, reduction="sum"))
        for rows, right in zip(logits[0, :-1].split(256), following.split(256), strict=True)
    )
    return {"loss": total / len(following), "uniform_loss": float(np.log(logits.shape[-1]))}


def _probe(model: nn.Module, tokenizer: Any, rng: np.random.Generator) -> dict[str, Real] | None:
    try:
        return probe_heads(model, vocabulary=None if tokenizer is None else ordinary_tokens(tokenizer), rng=rng)
    except FAILURES as error:
        warnings.warn(f"no probe on repeated tokens: {error}", RegimeWarning, stacklevel=3)
        return None
