"""Read every head of a model on some texts: what it does, and how sure we are, compared with random weights.

One forward pass a text. Layer by layer, heads are measured (:mod:`bulkedge.heads.measures.attention_measures`),
predicted from the moments of their queries and keys (:func:`predict`), and compared with random heads on the same
inputs (:mod:`bulkedge.models.scanning.random_heads`). Memory is bounded by one layer.

>>> import torch
>>> from transformers import GPT2Config, GPT2Model
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=50)).eval()
>>> found = scan(model, torch.arange(40) % 7, draws=5, probe=False, rng=0)
>>> len(found.records()), sorted(found.data.sizes)[:3]
(8, ['column', 'factor', 'item'])
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

from bulkedge.heads import CausalChannel, Channel, score_scales
from bulkedge.heads.measures.attention_measures import measure_heads
from bulkedge.heads.softmax import mean_rows
from bulkedge.models.hooks.attention_inputs import AttentionLayer, with_sinks
from bulkedge.models.hooks.capture import HeadScores, Visit, map_heads, stream
from bulkedge.models.loading.packaged import sample_text
from bulkedge.models.scanning.probing import ordinary_tokens
from bulkedge.models.scanning.probing import probe as probe_heads
from bulkedge.models.scanning.random_heads import COORDINATE, deviations, draw_random_heads
from bulkedge.models.scanning.results import LONGER, PREDICTED, Reading, Scan, assemble
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.progress import tell

USUAL = 512
"""Tokens of a text that are read by default; a scan that asks for more warns where there are fewer."""
PICTURE = 48
"""Rows and columns of the picture of an attention matrix."""
TOKEN_INPUTS = ("input_ids", "decoder_input_ids", "token_type_ids", "position_ids")
"""Inputs with an entry for every token."""


def scan(  # noqa: PLR0913 - what a scan can be asked, one by one
    model: Any = None,
    inputs_or_texts: Any = None,
    *,
    tokenizer: Any = None,
    tokens: int = USUAL,
    layers: Iterable[int] | None = None,
    draws: int = 19,
    probe: bool = True,
    device: Any = None,
    title: str = "",
    rng: Any = 0,
) -> Scan:
    """Scan the heads of a model.

    Parameters
    ----------
    model : torch.nn.Module or str, optional
        A transformers model, or any module with ``torch.nn.MultiheadAttention`` inside; or what
        :func:`bulkedge.models.load_model` takes: a folder, a file, a hub id, ``"minilm"``. By default a small decoder
        that is trained on the spot.
    inputs_or_texts : optional
        Texts, token ids, or inputs of the model by name. By default the opening of a book. Of several, a scan has
        medians, and how far they agree.
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
        If nothing can be read, or no attention is seen.

    Warns
    -----
    RegimeWarning
        If more than the usual number of tokens was asked for, and no text has as many; or if the model has no positions
        for as many as there are.
    """
    tokens, draws = check_sizes(tokens, draws)
    rng = np.random.default_rng(rng)
    model, tokenizer, own_title = _load(model, tokenizer)
    passages = sequences(
        _default_text(model, tokenizer) if inputs_or_texts is None else inputs_or_texts, tokenizer, tokens
    )
    longest = max(each.length for each in passages)
    if max(USUAL, longest) < tokens and longest:
        warnings.warn(
            f"tokens = {tokens}, but the longest text has {longest}: no more were read", RegimeWarning, stacklevel=2
        )
    passages = _cut_to_positions(model, passages)
    with _on_device(model, device):
        reader = _Reader(model, None if layers is None else frozenset(layers), draws, rng)
        readings = [reader.read(passage) for passage in passages]
        probes = _probe(model, tokenizer, rng) if probe and "input_ids" in passages[0].inputs else None
    attributes = {
        "model": title or own_title,
        "architecture": type(model).__name__,
        "tokens": max(reading.tokens for reading in readings),
        "draws": draws,
    }
    return Scan(assemble(readings, probes, attributes), tuple(readings[0].random_heads), model)


def check_sizes(tokens: int, draws: int) -> tuple[int, int]:
    """Refuse sizes that a scan cannot have."""
    tokens, draws = Integers(16, 2**15).check("tokens", tokens), Integers(0, 10_000).check("draws", draws)
    if 0 < draws < 5:
        raise DomainError(f"draws = {draws} random heads have no spread to speak of: 5 or more, or 0 for none")
    return tokens, draws


class _Reader:
    """Reads one text after another with one model."""

    def __init__(self, model: nn.Module, wanted: frozenset[int] | None, draws: int, rng: np.random.Generator) -> None:
        self.model, self.wanted, self.draws = model, wanted, draws
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        self.total: int | None = None

    def read(self, passage: Passage) -> Reading:
        """One forward pass, and what its layers show."""
        inputs = _model_inputs(self.model, passage.inputs)
        if self.total is None:
            self.total = self._count(_model_inputs(self.model, passage.cut(8).inputs))
        reading, place = Reading(passage.title), 0
        label = f"layers of {passage.title!r}"
        tell(label, 0, self.total)

        def visit(each: Visit) -> None:
            nonlocal place
            if self.wanted is None or place in self.wanted:
                self._layer(each, place, passage, reading)
                tell(label, len(reading.names), self.total or 0)
            place += 1

        stream(self.model, visit, **inputs)
        return reading

    def _count(self, inputs: dict[str, Any]) -> int:
        """Number of layers that will be read, from a pass over a few tokens."""
        seen: list[str] = []
        stream(self.model, lambda visit: seen.append(visit.layer.name), **inputs)
        if self.wanted is None:
            return len(seen)
        beyond = [each for each in self.wanted if each not in range(len(seen))]
        if beyond or not self.wanted:
            raise DomainError(f"layers = {sorted(self.wanted, key=str)}: the model has {len(seen)}, numbered from 0")
        return len(self.wanted)

    def _layer(self, visit: Visit, place: int, passage: Passage, reading: Reading) -> None:
        layer = visit.layer
        ids = None if layer.cross else passage.ids(layer.name, layer.key.shape[2])
        ids = ids if ids is None else ids.to(layer.query.device)
        found = measure_layer(layer, ids)
        if self.draws:
            null = draw_random_heads(visit, ids, found[COORDINATE], self.draws, self.generator)
            reading.random_heads.append(null)
            reading.deviations.append(deviations(found, null))
        reading.names.append(layer.name)
        reading.indices.append(place)
        reading.causal.append(layer.causal)
        reading.tokens = max(reading.tokens, layer.key.shape[2])
        reading.pictures.append(found.pop("picture"))
        reading.measures.append(found | predict(layer, found["columns"]))
        rank, cosine = _token_similarity(visit.inputs)
        reading.token_stable_rank.append(rank)
        reading.token_cosine.append(cosine)


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
            sight=scores.sight,
            factors=factors,
            sink_scores=scores.sinks,
            operator=scores.operator(),
        )
        return found | {"picture": _picture(scores)}

    parts = map_heads(read, layer, ids)
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def _picture(scores: HeadScores) -> np.ndarray[Any, Any]:
    """Small pictures of attention matrices: means over blocks, on a square-root scale, 255 for the largest."""
    size = tuple(min(PICTURE, each) for each in scores.sight.shape)

    def narrow(rows: slice) -> Tensor:
        added = scores.sight.part(rows).added
        content = scores.content(rows) if added is None else scores.content(rows) + added
        return adaptive_avg_pool1d(with_sinks(content, scores.sinks), size[1])

    means = torch.cat([narrow(rows) for rows in scores.sight.blocks], dim=1)
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


def predict(layer: AttentionLayer, columns: Real) -> dict[str, Real]:
    """What second moments of queries and keys explain of a layer's heads; what they do not explain is structure."""
    query, key = layer.query[0].float(), layer.key[0].float()  # predictions are not worth double precision
    heads, rows, tokens = columns.shape[0], query.shape[1], key.shape[1]
    channel = Channel.from_qk(query, key, layer.scale)
    found = {name: np.full(heads, np.nan) for name in PREDICTED}
    found["coupling"] = as_numpy(channel.couplings).max(axis=-1) ** 2
    found["effective_dim"] = as_numpy(channel.effective_dim)
    causal = None
    if layer.causal and rows == tokens and layer.softcap is None:
        causal = CausalChannel.from_qk(query, key, layer.scale)
        found["predicted_entropy"] = as_numpy(causal.entropy)[:, min(16, tokens - 1) :].mean(axis=-1)
        popularity = as_numpy(causal.popularity)
    elif layer.mask is None and layer.visibility.alike and layer.softcap is None:
        found["predicted_entropy"] = as_numpy(channel.rows(tokens).entropy)
        popularity = as_numpy(channel.popularity(key))
    else:
        return found | {name: np.full((heads, len(LONGER)), np.nan) for name in ("longer_entropy", "scale")}
    found["popularity_correlation"] = _log_correlation(popularity, columns)
    return found | _longer_contexts(channel, tokens, causal)


def _log_correlation(one: Real, other: Real) -> Real:
    logs = [np.log(np.maximum(each, 1e-30)) for each in (one, other)]
    logs = [each - each.mean(axis=-1, keepdims=True) for each in logs]
    norms = np.sqrt(np.prod([np.sum(each**2, axis=-1) for each in logs], axis=0))
    return np.divide(np.sum(logs[0] * logs[1], axis=-1), norms, out=np.full(len(norms), np.nan), where=norms > 0)


def _longer_contexts(channel: Channel, tokens: int, causal: CausalChannel | None = None) -> dict[str, Real]:
    """Entropy of rows of longer contexts, and the factor on the scores that keeps it where it is."""
    moments = channel.spread_moments
    entropies = [mean_rows(*moments, times * tokens)[0] for times in LONGER]
    heads = channel if causal is None else causal
    factors = [score_scales(heads, tokens, times * tokens) for times in LONGER]
    factors = [np.where(each < 16, each, np.nan) for each in factors]  # what needs more is uniform but for noise
    return {"longer_entropy": np.stack(entropies, axis=-1), "scale": np.stack(factors, axis=-1)}


# -- what is read ------------------------------------------------------------------------------------------------------


class Passage(NamedTuple):
    """One sequence: what to call it, and what the model is called with."""

    title: str
    inputs: dict[str, Any]

    @property
    def length(self) -> int:
        """Number of tokens, zero where these are not tokens."""
        return max((each.shape[-1] for name, each in self.inputs.items() if name in TOKEN_INPUTS), default=0)

    def cut(self, tokens: int) -> Passage:
        """The first tokens alone."""
        inputs = {name: each[:, :tokens] if name in TOKEN_INPUTS else each for name, each in self.inputs.items()}
        return self._replace(inputs=inputs)

    def ids(self, layer_name: str, tokens: int) -> Any:
        """Token of every position of a layer, or None where these are not tokens."""
        names = ["decoder_input_ids", "input_ids"] if "decoder" in layer_name else ["input_ids"]
        found = next((self.inputs[name] for name in names if name in self.inputs), None)
        return found[0] if found is not None and found.shape[-1] == tokens else None


def sequences(given: Any, tokenizer: Any = None, tokens: int = 512) -> list[Passage]:
    """Whatever is given to a scan as single sequences.

    Examples
    --------
    >>> tokenizer = lambda text, **_: {"input_ids": [len(word) for word in text.split()]}
    >>> [each.inputs["input_ids"].tolist() for each in sequences(["a first text", "a second"], tokenizer)]
    [[[1, 5, 4]], [[1, 6]]]
    """
    if isinstance(given, str | Mapping) or hasattr(given, "shape"):
        given = [given]
    if not isinstance(given, Sequence) or not given:
        raise DomainError(f"there is nothing to read in {given!r}: give texts, token ids, or inputs by name")
    found: list[Passage] = []
    for place, each in enumerate(given):
        if isinstance(each, str):
            found.append(_text_passage(each, tokenizer, tokens))
        else:
            found.extend(_input_passages(each if isinstance(each, Mapping) else {"input_ids": each}, place, tokens))
    return found


def _text_passage(text: str, tokenizer: Any, tokens: int) -> Passage:
    if tokenizer is None:
        raise DomainError("texts need tokenizer=; without one give token ids: scan(model, ids)")
    if not text.strip():
        raise DomainError("a text has nothing in it")
    encoded = tokenizer(text, truncation=True, max_length=tokens)
    ids = torch.as_tensor(encoded["input_ids"])
    title = " ".join(text.split())
    short = title if len(title) <= 60 else title[:59] + "…"
    return Passage(short, {"input_ids": ids.reshape(1, -1)[:, :tokens]})


def _input_passages(named: Mapping[str, Any], place: int, tokens: int) -> list[Passage]:
    """Inputs of several sequences, one by one, without what pads them."""
    arrays = {name: torch.as_tensor(each) for name, each in named.items() if each is not None}
    if not arrays:
        raise DomainError("inputs are empty; give at least input_ids, or whatever the model is called with")
    if "input_ids" in arrays and arrays["input_ids"].ndim == 1:
        arrays = {name: each[None] for name, each in arrays.items()}
    count = min(len(each) for each in arrays.values())
    found = []
    for row in range(count):
        one = {name: each[row : row + 1] for name, each in arrays.items()}
        for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
            if ids in one:
                kept = one.pop(mask).bool()[0] if mask in one else torch.ones(one[ids].shape[-1], dtype=torch.bool)
                one = {name: _kept_tokens(each, kept, tokens, one[ids].shape) for name, each in one.items()}
        found.append(Passage(f"sequence {place + row + 1}", one))
    return found


def _kept_tokens(array: Any, kept: Any, tokens: int, shape: Any) -> Any:
    """What has an entry for every token, without those that are not kept and those beyond the first ``tokens``."""
    return array[:, kept.to(array.device)][:, :tokens] if array.shape == shape else array


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


def _cut_to_positions(model: Any, passages: list[Passage]) -> list[Passage]:
    """No more tokens than the model has positions for."""
    places = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(places, int) or max(each.length for each in passages) <= places:
        return passages
    long = [each for each in passages if each.length > places]
    warnings.warn(
        f"{len(long)} of {len(passages)} sequences are cut to the model's {places} positions",
        RegimeWarning,
        stacklevel=3,
    )
    return [each.cut(places) for each in passages]


def _model_inputs(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs on the model's device, without a cache; models of two parts read the same text with both."""
    device = next((each.device for each in model.parameters()), None)
    found = {name: each.to(device) if hasattr(each, "to") else each for name, each in inputs.items()}
    accepted = inspect.signature(model.forward).parameters
    if "use_cache" in accepted:
        found["use_cache"] = False
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and "input_ids" in found:
        found.setdefault("decoder_input_ids", found["input_ids"])
    return found


@contextmanager
def _on_device(model: nn.Module, device: Any) -> Iterator[None]:
    """Keep a model on a device and in evaluation mode until the end of the ``with`` block."""
    before = next((each.device for each in model.parameters()), None)
    training = [each for each in model.modules() if each.training]
    try:
        if device is not None:
            model.to(device)
        model.eval()
        yield
    finally:
        for each in training:
            each.training = True
        if device is not None and before is not None:
            model.to(before)


def _probe(model: nn.Module, tokenizer: Any, rng: np.random.Generator) -> dict[str, Real] | None:
    try:
        return probe_heads(model, vocabulary=None if tokenizer is None else ordinary_tokens(tokenizer), rng=rng)
    except DomainError as error:
        warnings.warn(f"no probe on repeated tokens: {error}", RegimeWarning, stacklevel=3)
        return None
