"""What steps of training do to the scores: the change of ``W_Q W_K'`` of every head, in factors, with a null.

With queries ``W_Q x`` and keys ``W_K y`` (heads of shape (dim, width)) a head scores by ``x' W_Q' W_K y``. Its change

    D = dW_Q' W_K + V_Q' dW_K        (V the weights before, W those after, and dW = W - V)

is a product of two matrices with 2 dim rows, ``[dW_Q; V_Q]' [W_K; dW_K]``: its length and its singular values are those
of small cores, and the width x width matrix is never formed.

The null is a random update of the same lengths: ``dW_Q`` and ``dW_K`` Gaussian, all else as it is. The triangular
factor of ``[W; G]`` with Gaussian ``G`` is made of that of W, a Gaussian matrix and one of Bartlett's, so that a draw
costs as little as a core, whatever the width.

>>> import torch
>>> generator = torch.Generator().manual_seed(0)
>>> before, after = torch.randn(2, 2, 3, 8, 64, generator=generator)
>>> spectra = update_spectra(tuple(before), tuple(before + 0.01 * after), generator=generator)
>>> spectra["update_p"].shape, bool((spectra["update_p"] > 0.001).all())
(torch.Size([3]), True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import MultiheadAttention

from bulkedge.models.hooks.attention_hooks import AttentionInputs
from bulkedge.support.domains import Integers

DRAWS = 24  # of the null
LEVEL = 0.01  # of the edge beyond which singular values are outliers
SPREAD = 0.02  # by which lengths of queries may differ, from token to token, from those of what a map gave
Weights: TypeAlias = tuple[Tensor, Tensor]  # of queries and keys, (heads, dim, width); key heads are fewer if shared
SPECTRA = {
    "update_top": "largest singular value of the change of W_Q W_K' between readings, over the mean of random updates",
    "update_p": "chance that a random update of the same lengths has a larger one",
    "update_outliers": "singular values of the change beyond the edge of random updates",
}


class HeadMap(NamedTuple):
    """Rows of a linear map that make the queries, or the keys, of a head."""

    module: Any
    name: str  # of its weight
    rows: Tensor  # (heads, dim): numbers of its outputs, on its device

    def weight(self) -> Tensor | None:
        """The weights of all heads as they are now; None where other processes have a part of them."""
        weight = getattr(self.module, self.name).detach()
        if type(weight) not in {Tensor, nn.Parameter} or not weight.is_floating_point():
            return None
        if type(self.module).__name__ == "Conv1D":  # that of transformers: rows are inputs
            weight = weight.T
        return weight[self.rows].clone()


Projections: TypeAlias = tuple[HeadMap, HeadMap]


class ProjectionFinder:
    """Finds the maps that made the queries and keys of an attention, by what they gave: no name is known of any."""

    def __init__(self) -> None:
        self.outputs: list[tuple[nn.Module, Tensor]] = []

    def note(self, module: nn.Module, answer: object) -> None:
        """Remember what a map gave, until the next attention."""
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and isinstance(answer, Tensor) and answer.ndim >= 2:
            self.outputs.append((module, answer.detach()))

    def find(self, found: AttentionInputs) -> Projections | None:
        """The maps of an attention, or None if they cannot be told; what was noted is forgotten."""
        maps = self._find(found)
        device = found.query.device
        return None if maps is None else (
            maps[0]._replace(rows=maps[0].rows.to(device)), maps[1]._replace(rows=maps[1].rows.to(device))
        )  # fmt: skip

    def _find(self, found: AttentionInputs) -> Projections | None:
        own = set(found.module.modules())
        outputs, self.outputs = [each for each in self.outputs if each[0] in own], []
        heads, key_heads, dim = found.query.shape[1], found.key.shape[1], found.query.shape[3]
        if isinstance(found.module, MultiheadAttention):
            return _multihead(found.module, heads, dim)
        for query_rows, key_rows, size in _fused_rows(heads, key_heads, dim):
            for module, answer in outputs:
                if answer.shape[-1] == size and _made(found.query, answer, query_rows):
                    key = HeadMap(module, "weight", key_rows)
                    return HeadMap(module, "weight", query_rows), key
        rows = torch.arange(heads * dim).view(heads, dim), torch.arange(key_heads * dim).view(key_heads, dim)
        exact = [
            next((module for module, y in outputs if y.shape[-1] == some.numel() and _made(each, y, some)), None)
            for each, some in zip((found.query, found.key), rows, strict=True)
        ]
        if None in exact or exact[0] is exact[1]:  # norms of queries and keys: by their order, as all models have it
            tokens = {found.query.shape[0] * each.shape[2] for each in (found.query, found.key)}
            sizes = {each.numel() for each in rows}
            fitting = [m for m, y in outputs if y.shape[-1] in sizes and y.numel() // y.shape[-1] in tokens]
            if len(fitting) not in {2, 3}:
                return None
            exact = list(fitting[:2])
        return HeadMap(exact[0], "weight", rows[0]), HeadMap(exact[1], "weight", rows[1])


def _fused_rows(heads: int, key_heads: int, dim: int) -> list[tuple[Tensor, Tensor, int]]:
    """Rows of queries and keys in a map that makes values too: one after the other, or key head by key head."""
    group, size = heads // key_heads, (heads + 2 * key_heads) * dim
    every = torch.arange(size)
    stacked = every[: heads * dim].view(heads, dim), every[heads * dim : (heads + key_heads) * dim].view(key_heads, dim)
    blocks = every.view(key_heads, group + 2, dim)
    return [(*stacked, size), (blocks[:, :group].reshape(heads, dim), blocks[:, group], size)]


def _multihead(module: MultiheadAttention, heads: int, dim: int) -> Projections:
    rows = torch.arange(heads * dim).view(heads, dim)
    if module.in_proj_weight is None:
        return HeadMap(module, "q_proj_weight", rows), HeadMap(module, "k_proj_weight", rows)
    return HeadMap(module, "in_proj_weight", rows), HeadMap(module, "in_proj_weight", rows + heads * dim)


def _made(heads: Tensor, answer: Tensor, rows: Tensor) -> bool:
    """Whether a map gave vectors of these lengths, up to a factor; rotary positions leave lengths as they are."""
    batch, tokens = heads.shape[0], heads.shape[2]
    if answer.numel() != batch * tokens * answer.shape[-1]:
        return False
    own = answer.reshape(batch, tokens, -1)[0][:, rows.to(answer.device)].float().norm(dim=-1).T  # (heads, tokens)
    ratio = heads[0].detach().float().norm(dim=-1) / own.clamp(min=1e-20)
    spread, mean = torch.std_mean(ratio)
    return bool(spread < SPREAD * mean)


# -- lengths -----------------------------------------------------------------------------------------------------------


def expand(weights: Weights) -> Weights:
    """The same with a key head for each head, in single precision."""
    query, key = (each.float() for each in weights)
    return query, key.repeat_interleave(query.shape[0] // key.shape[0], dim=0)


def factors(before: Weights, after: Weights) -> Weights:
    """The factors of the change, (heads, 2 dim, width) each."""
    (query, key), (new_query, new_key) = expand(before), expand(after)
    return torch.cat([new_query - query, query], dim=1), torch.cat([new_key, new_key - key], dim=1)


def product_length(left: Tensor, right: Tensor) -> Tensor:
    """Frobenius norm of ``left' right`` of each head."""
    return ((left @ left.mT) * (right @ right.mT)).sum((-2, -1)).clamp(min=0).sqrt()


def relative_change(before: Weights, after: Weights) -> Tensor:
    """Length of the change of ``W_Q W_K'`` over its own, of each head; nan where nothing moved."""
    change = product_length(*factors(before, after))
    return torch.where(change > 0, change / product_length(*expand(after)), torch.nan)


# -- spectra -----------------------------------------------------------------------------------------------------------


def update_spectra(
    before: Weights, after: Weights, draws: int = DRAWS, generator: torch.Generator | None = None
) -> Mapping[str, Tensor]:
    """Singular values of the change of each head against random updates of the same lengths (:data:`SPECTRA`)."""
    Integers(8, 4096).check("draws", draws)
    left, right = (each.double() for each in factors(before, after))
    dim, width = left.shape[1] // 2, left.shape[2]
    values = torch.linalg.svdvals(_triangle(left).mT @ _triangle(right))
    sizes = [each.square().sum((-2, -1)).sqrt() for each in (left[:, :dim], right[:, dim:])]  # of both changes
    fixed = _triangle(left[:, dim:]), _triangle(right[:, :dim] - right[:, dim:])
    random = []
    for _ in range(draws):
        query, key = (
            _random_triangle(each, size / math.sqrt(dim * width), width, generator)
            for each, size in zip(fixed, sizes, strict=True)
        )
        first = torch.cat([query[:, dim:], query[:, :dim]], dim=1)  # the change, and what was before
        second = torch.cat([key[:, :dim] + key[:, dim:], key[:, dim:]], dim=1)  # what is after, and the change
        core = first.mT @ second
        random.append(torch.linalg.eigvalsh(core @ core.mT)[:, -1])
    top = torch.stack(random).log() / 2
    spread, mean = torch.std_mean(top, dim=0)
    spread = spread * math.sqrt(1 + 1 / draws)  # both are estimates
    score = (values.log() - mean[:, None]) / spread[:, None]
    p = _tail(score, draws - 1)
    p[torch.isnan(p)] = 1.0
    moved = (sizes[0] > 0) | (sizes[1] > 0)
    found = {
        "update_top": values[:, 0] / mean.exp(),
        "update_p": p[:, 0],
        "update_outliers": (p < LEVEL).sum(-1).double(),
    }
    return {name: torch.where(moved, each, torch.nan) for name, each in found.items()}


def _triangle(rows: Tensor) -> Tensor:
    """The lower triangular factor L of matrices with few rows, ``rows = L Q`` with orthonormal Q."""
    return torch.linalg.qr(rows.mT, mode="r")[1].mT


def _random_triangle(fixed: Tensor, scale: Tensor, width: int, generator: torch.Generator | None) -> Tensor:
    """That of ``[W; G]``, given that of W, for Gaussian G of a scale: (heads, 2 dim, 2 dim)."""
    heads, dim, own = fixed.shape
    rest = min(dim, width - own)
    kind: dict[str, Any] = {"dtype": fixed.dtype, "device": fixed.device}
    along = torch.randn(heads, dim, own, generator=generator, **kind)
    beyond = torch.randn(heads, dim, rest, generator=generator, **kind).tril(-1)
    # squared lengths of Gaussian vectors in fewer and fewer dimensions
    freedoms = torch.arange(width - own, width - own - rest, -1, **kind)
    shape = (freedoms / 2).expand(heads, rest)
    lengths = (2 * torch._standard_gamma(shape.contiguous(), generator)).sqrt()
    beyond[:, torch.arange(rest), torch.arange(rest)] = lengths
    drawn = torch.cat([along, beyond], dim=-1) * scale[:, None, None]
    above = torch.cat([fixed, fixed.new_zeros(heads, dim, rest)], dim=-1)
    return torch.cat([above, drawn], dim=1)


def _tail(score: Tensor, freedom: int) -> Tensor:
    """Chance of a larger value than a score: Student's t."""
    from scipy.special import stdtr

    return torch.as_tensor(1 - stdtr(freedom, score.cpu().numpy())).to(score)


def snapshot(projections: Mapping[str, Projections]) -> dict[str, Weights]:
    """Weights of queries and keys of all layers that can be read, as they are now."""
    found = {}
    for name, (query, key) in projections.items():
        queries, keys = query.weight(), key.weight()
        if queries is not None and keys is not None:
            found[name] = queries, keys
    return found


class UpdateTracker:
    """The weights of queries and keys of a model, a step and a reading ago: what is kept does not grow with the run."""

    def __init__(self, every: int, *, spectra: bool) -> None:
        self.every, self.spectra = every, spectra
        self.projections: dict[str, Projections] = {}
        self._step, self._before = -2, dict[str, Weights]()
        self._last: dict[str, Weights] = {}

    @torch.no_grad()
    def keep(self, step: int) -> None:
        """Keep the weights of a step if the next one is to be read."""
        if (step + 1) % self.every == 0 and step != self._step:
            self._step, self._before = step, snapshot(self.projections)

    @torch.no_grad()
    def read(self, step: int) -> dict[str, dict[str, Tensor]]:
        """What the last step changed, by layer, if its weights were kept; and spectra of changes since last read."""
        now = snapshot(self.projections)
        found: dict[str, dict[str, Tensor]] = {name: {} for name in now}
        if self._step == step - 1:
            for name in now.keys() & self._before.keys():
                found[name]["update"] = relative_change(self._before[name], now[name])
        if self.spectra:
            for name in now.keys() & self._last.keys():
                found[name] |= update_spectra(self._last[name], now[name])
            self._last = now
        return found
