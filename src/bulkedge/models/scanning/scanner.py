"""Read every head of a model on some texts: what it does, and how sure we are, beside fresh random weights.

One forward pass a text. Layer by layer, heads are measured (:mod:`bulkedge.heads.measures.measures`), predicted from
their moments (:mod:`bulkedge.models.scanning.predicted`), and held beside fresh heads on the same inputs
(:mod:`bulkedge.models.scanning.random_heads`). Memory is bounded by one layer.

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
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bulkedge.heads.measures.measures import measured
from bulkedge.models.hooks.attention_inputs import AttentionLayer, with_sinks
from bulkedge.models.hooks.capture import HeadScores, Visit, map_heads, stream
from bulkedge.models.loading.sequences import Passage, sequences
from bulkedge.models.scanning.assembly import Reading, assembled
from bulkedge.models.scanning.p_values import beside
from bulkedge.models.scanning.predicted import predicted
from bulkedge.models.scanning.random_heads import COORDINATE, draw_fresh
from bulkedge.models.scanning.results import Scan
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.progress import tell

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS, DRAWS = Integers(16, 2**15), Integers(0, 10_000)
USUAL = 512
"""Tokens of a text that are read unless others are asked for; who asks for more is told where there are fewer."""
FEWEST_DRAWS = 5
COUNTED = 8
"""Tokens that are enough to count layers."""
PICTURE = 48
"""Rows and columns of the picture of an attention matrix."""


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
        What :func:`bulkedge.models.loading.sequences.sequences` takes: texts, token ids, or inputs of the model by
        name. By default the opening of a book. Of several, medians are told, and how far they agree.
    tokenizer : callable, optional
        For texts; that of the loaded model by default.
    tokens : int, optional
        How many tokens of each text are read at most. Beyond 4096 nothing of the size tokens by tokens is formed: rows
        are read in blocks, and spectra estimated from products, with their error in ``spectrum_error``
        (:mod:`bulkedge.heads.measures.singular_values`).
    layers : iterable of int, optional
        Which attention modules, in the order in which they are called; all by default.
    draws : int, optional
        Number of fresh heads a layer, for the null; none makes no p-values, and is six times as fast.
    probe : bool, optional
        Whether to look for induction, duplicate and previous-token heads on repeated random tokens, where the model
        reads tokens.
    device : optional
        Where to run; where the model is by default.
    title : str, optional
        What to call the model; by default what it calls itself.
    rng : int, numpy.random.Generator, optional
        Seed of the fresh weights and of the probe.

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
    model, tokenizer, own_title = _loaded(model, tokenizer)
    passages = sequences(_given(inputs_or_texts, tokenizer, model), tokenizer, tokens)
    longest = max(each.length for each in passages)
    if max(USUAL, longest) < tokens and longest:
        warnings.warn(
            f"tokens = {tokens}, but the longest text has {longest}: no more were read", RegimeWarning, stacklevel=2
        )
    passages = _fitting(model, passages)
    with _placed(model, device) as model:
        reader = _Reader(model, None if layers is None else frozenset(layers), draws, rng)
        readings = [reader.read(passage) for passage in passages]
        probes = _probed(model, tokenizer, rng) if probe and "input_ids" in passages[0].inputs else None
    attributes = {
        "model": title or own_title,
        "architecture": type(model).__name__,
        "tokens": max(reading.tokens for reading in readings),
        "draws": draws,
    }
    return Scan(assembled(readings, probes, attributes), tuple(readings[0].fresh), model)


def check_sizes(tokens: int, draws: int) -> tuple[int, int]:
    """Refuse sizes that a scan cannot have."""
    tokens, draws = TOKENS.check("tokens", tokens), DRAWS.check("draws", draws)
    if 0 < draws < FEWEST_DRAWS:
        raise DomainError(
            f"draws = {draws} fresh heads have no spread to speak of: {FEWEST_DRAWS} or more, or 0 for none"
        )
    return tokens, draws


class _Reader:
    """Reads one text after another with one model."""

    def __init__(self, model: nn.Module, wanted: frozenset[int] | None, draws: int, rng: np.random.Generator) -> None:
        import torch

        self.model, self.wanted, self.draws = model, wanted, draws
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        self.total: int | None = None

    def read(self, passage: Passage) -> Reading:
        """One forward pass, and what its layers show."""
        inputs = _called_with(self.model, passage.inputs)
        if self.total is None:
            self.total = self._count(_called_with(self.model, passage.cut(COUNTED).inputs))
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
        found = _heads(layer, ids)
        if self.draws:
            fresh = draw_fresh(visit, ids, found[COORDINATE], self.draws, self.generator)
            reading.fresh.append(fresh)
            reading.surprises.append(beside(found, fresh))
        reading.names.append(layer.name)
        reading.indices.append(place)
        reading.causal.append(layer.causal)
        reading.tokens = max(reading.tokens, layer.key.shape[2])
        reading.pictures.append(found.pop("picture"))
        reading.measures.append(found | predicted(layer, found["columns"]))
        rank, cosine = _tokens_alike(visit.inputs)
        reading.token_stable_rank.append(rank)
        reading.token_cosine.append(cosine)


def _heads(layer: AttentionLayer, ids: Any) -> dict[str, Real]:
    """Measures and pictures of the heads of a layer."""

    def read(scores: HeadScores) -> dict[str, Any]:
        # products in double precision do not overflow, if those of the largest entries do not
        largest = [each.abs().amax() for each in scores.factors]
        if not bool((largest[0] * largest[1] * scores.factors[0].shape[-1]).isfinite()):
            raise DomainError(
                f"{layer.name}: scores are not all finite; if the model runs in half precision, try single"
            )
        factors = scores.factors if layer.softcap is None else None  # capped scores are no products
        found = measured(
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
    import torch
    from torch.nn.functional import adaptive_avg_pool1d

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


def _tokens_alike(inputs: Tensor) -> tuple[float, float]:
    """Stable rank of a layer's tokens, and their mean cosine."""
    import torch

    vectors = inputs[0].double()
    gram = vectors.mT @ vectors if vectors.shape[0] > vectors.shape[1] else vectors @ vectors.mT
    largest = torch.linalg.eigvalsh(gram)[-1]
    rank = float(torch.trace(gram) / largest)
    unit = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    count = len(unit)
    return rank, float((unit.sum(0).square().sum() - count) / max(count * (count - 1), 1))


def _loaded(model: Any, tokenizer: Any) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and what to call it."""
    if model is None or isinstance(model, str):
        from bulkedge.models.loading.loader import load_model

        loaded, own, title = load_model(model)
        return loaded, tokenizer or own, title
    if not hasattr(model, "named_modules"):
        raise DomainError(f"model is a {type(model).__name__}; give a torch module, a path, or a name")
    path = getattr(getattr(model, "config", None), "name_or_path", "")
    return model, tokenizer, Path(path).name or type(model).__name__


def _given(given: Any, tokenizer: Any, model: Any) -> Any:
    if given is not None:
        return given
    if tokenizer is None:
        raise DomainError(
            f"{type(model).__name__} came without a tokenizer: give token ids, scan(model, ids), or the inputs that it "
            "is called with, scan(model, {'pixel_values': ...})"
        )
    from bulkedge.models.loading.packaged import sample_text

    return sample_text("alice")


def _fitting(model: Any, passages: list[Passage]) -> list[Passage]:
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


def _called_with(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
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
def _placed(model: nn.Module, device: Any) -> Any:
    """The model on the device and in evaluation mode; as before in the end."""
    before = next((each.device for each in model.parameters()), None)
    training = [each for each in model.modules() if each.training]
    try:
        if device is not None:
            model.to(device)
        model.eval()
        yield model
    finally:
        for each in training:
            each.training = True
        if device is not None and before is not None:
            model.to(before)


def _probed(model: nn.Module, tokenizer: Any, rng: np.random.Generator) -> dict[str, Real] | None:
    from bulkedge.models.scanning.probing import ordinary_tokens, probe

    try:
        return probe(model, vocabulary=None if tokenizer is None else ordinary_tokens(tokenizer), rng=rng)
    except DomainError as error:
        warnings.warn(f"no probe on repeated tokens: {error}", RegimeWarning, stacklevel=3)
        return None
