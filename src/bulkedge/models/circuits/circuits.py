"""The circuits of every head from the weights alone: no input, no model in memory.

A head scores by ``x Q K' y'`` and writes ``y V O'``: the matrices ``Q K'`` (QK circuit) and ``V O'`` (OV circuit) are
all that its weights do. Their factors are not unique: ``Q G`` and ``K inv(G)'`` are the same head for every invertible
G. So every number here is one of the product.

With Q of shape (width, dim) the product is width x width and of rank dim. Its singular values are those of the small
core ``R_Q R_K'``, with R the triangular factors; the large matrix is never formed.

Random weights are the null (:class:`RandomCircuit`). With factors of shape (left, dim) and (right, dim) and independent
entries, the squared singular values of their product follow a ``ProductLaw`` with the smallest of the three numbers
over the two others as its ratios. The scale of random weights, the product of the two variances, depends on the gauge
that the file has. It is taken in the gauge where the factors are shortest: there the squared length of both is the sum
of the singular values, which depends on the product alone.

>>> null = RandomCircuit.of(768, 64, 768)
>>> round(null.law.edge, 3), round(null.edge, 3)
(2.037, 2.131)
>>> values = null.draw(np.random.default_rng(1))
>>> float(null.distance(values)) < 2 * null.typical_distance
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bulkedge.laws.classical.product import ProductLaw
from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.distribution import Unit
from bulkedge.models.circuits.checkpoints import ModelCheckpoint, open_checkpoint
from bulkedge.models.circuits.projections import AttentionWeights, ProjectionName, find_attentions, unread_matrices
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import PATH, Choice, Integers, shown, takes
from bulkedge.support.errors import DomainError, need
from bulkedge.support.files import to_json
from bulkedge.support.progress import track
from bulkedge.version import __version__

LEVEL = 0.01  # probability that random weights have a singular value beyond the edge
CircuitName = Literal["QK", "OV"]
FACTORS: dict[CircuitName, tuple[ProjectionName, ProjectionName]] = {"QK": ("query", "key"), "OV": ("value", "output")}
ENTRIES = 2**22  # of a factor that are decomposed at a time, 32 MiB in double precision; one group of heads at least


@dataclass(frozen=True, eq=False)
class LayerCircuits:
    """One circuit of all heads of one attention module; arrays are over its heads."""

    layer: int  # which attention module, in the order in which the model calls them
    module: str  # its path in the checkpoint
    circuit: CircuitName
    null: RandomCircuit
    singular: Real  # singular values, in increasing order, (heads, size)
    group: int  # successive heads that share a key head
    biased: bool  # whether the projections have a bias that this circuit adds to
    bias_norm: Real  # length of what the bias adds; see :func:`scan_weights`

    @property
    def scale(self) -> Real:
        """Mean squared singular value of the null, for each head."""
        return self.null.scale(self.singular)

    def numbers(self) -> dict[str, Real]:
        """Every number of :func:`scan_weights`."""
        squared, null = self.singular**2, self.null
        energy, top = squared.sum(axis=-1), squared[:, -1]
        edge = self.scale * null.edge
        there = energy > 0
        beyond = squared > edge[:, None]
        return {
            "frobenius": np.sqrt(energy),
            "stable_rank": _ratio(energy, top, there),
            "largest": self.singular[:, -1],
            "edge": np.sqrt(edge),
            "largest_over_edge": np.sqrt(_ratio(top, edge, there)),
            "p_largest": null.p_largest(self.singular),
            "spikes": beyond.sum(axis=-1),
            "signal_energy": _ratio((squared * beyond).sum(axis=-1), energy, there),
            "distance": null.distance(self.singular),
            "null_distance": np.full(len(top), null.typical_distance),
            "bias_norm": self.bias_norm,
        }

    def records(self) -> list[dict[str, Any]]:
        """A dictionary for each head."""
        numbers = {name: each.tolist() for name, each in self.numbers().items()}
        return [
            {
                "layer": self.layer, "head": head, "circuit": self.circuit, "module": self.module,
                "key_head": head // self.group, "rank": self.null.size, "bias": self.biased,
                **{name: each[head] for name, each in numbers.items()},
            }
            for head in range(len(self.singular))
        ]  # fmt: skip


def _ratio(top: Real, bottom: Real, there: Any) -> Real:
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=there)


@dataclass(frozen=True, eq=False)
class Circuits:
    """What :func:`scan_weights` found.

    Attributes
    ----------
    members : tuple of LayerCircuits
        QK and OV circuit of each attention module that was read.
    architecture : str
        The ``model_type`` of the configuration.
    notes : tuple of str
        What to know when reading the numbers: rotary positions, norms of queries and keys, biases, tensors left out.
    """

    members: tuple[LayerCircuits, ...]
    architecture: str
    notes: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """A dictionary for each head and circuit, as :func:`scan_weights` lists them, layer by layer."""
        return [record for each in self.members for record in each.records()]

    @property
    def table(self) -> Any:
        """The records as a pandas DataFrame."""
        need("a table", "pandas", install="pandas; records() has the same without")
        return import_module("pandas").DataFrame(self.records())

    def to_json(self) -> str:
        """The version, the architecture, the level of the edge, the notes and the records, as JSON."""
        head = {"version": __version__, "architecture": self.architecture, "level": LEVEL, "notes": self.notes}
        return to_json(head | {"records": self.records()})

    def spectrum(self, layer: int, head: int, circuit: CircuitName) -> Spectrum:
        """The singular values of one circuit, those that are not zero for lack of rank.

        Parameters
        ----------
        layer, head : int
            As in the records.
        circuit : {"QK", "OV"}
            Which.

        Returns
        -------
        Spectrum
            Squared singular values, the unit of :meth:`law`.
        """
        found = self._member(layer, head, circuit)
        return Spectrum.of(found.singular[head] ** 2, Unit.SQUARED)

    def law(self, layer: int, head: int, circuit: CircuitName) -> ProductLaw:
        """The law that random weights of this size would follow.

        Parameters
        ----------
        layer, head : int
            As in the records.
        circuit : {"QK", "OV"}
            Which.

        Returns
        -------
        ProductLaw
            Of squared singular values, with the scale of this head.
        """
        found = self._member(layer, head, circuit)
        scale = float(found.scale[head])
        if not scale:
            raise DomainError(f"the {circuit} circuit of layer {layer}, head {head} is zero, and has no law")
        return ProductLaw(found.null.law.ratios, scale)

    def _member(self, layer: int, head: int, circuit: str) -> LayerCircuits:
        Choice(("QK", "OV")).check("circuit", circuit)
        for each in self.members:
            if (each.layer, each.circuit) == (layer, circuit) and 0 <= head < len(each.singular):
                return each
        raise DomainError(f"layer = {layer!r}, head = {head!r} was not read; the layers are {self._layers()}")

    def _layers(self) -> list[int]:
        return list(dict.fromkeys(each.layer for each in self.members))

    def summary(self) -> str:
        """How many heads are beyond random weights, and which is the strongest, in a few sentences."""
        heads = sum(len(each.singular) for each in self.members if each.circuit == "QK")
        layers = len(self._layers())
        opening = f"{self.architecture}: {heads} heads of {layers} attention modules, by their weights alone."
        return "\n".join([opening, *(self._sentence(kind) for kind in FACTORS), *self.notes])

    def _sentence(self, kind: CircuitName) -> str:
        records = [record for each in self.members if each.circuit == kind for record in each.records()]
        there = [each for each in records if each["frobenius"] > 0]
        if not there:
            return f"{kind} circuits: all zero."
        above = [each for each in there if each["spikes"]]
        distance, typical = (np.median([each[name] for each in there]) for name in ("distance", "null_distance"))
        says = (
            f"{kind} circuits: {len(above)} of {len(records)} heads have singular values beyond the edge of random "
            f"weights (by chance: {LEVEL * len(records):.2g}). Distance to the law of random weights: {distance:.3f} "
            f"in the median, against {typical:.3f} for random weights."
        )
        if above:
            top = max(above, key=lambda each: each["largest_over_edge"])
            says += (
                f" Strongest: layer {top['layer']}, head {top['head']}, whose largest value is "
                f"{top['largest_over_edge']:.2f} times the edge; {top['spikes']} of its {top['rank']} values are "
                f"beyond the edge, with {top['signal_energy']:.0%} of the energy."
            )
        return says


@takes(path=PATH)
def scan_weights(path: str | Path, *, layers: Iterable[int] | None = None) -> Circuits:
    """Read the QK and OV circuits of every head of a checkpoint and hold them against random weights.

    Files are read in slices, at most the heads of one attention at a time, so that memory does not grow with the model.

    Parameters
    ----------
    path : str or Path
        Folder of a checkpoint (``config.json`` with safetensors, their shards, or PyTorch's ``.bin`` files), or one of
        its files. Nothing in it is run, and nothing is downloaded.
    layers : iterable of int, optional
        Which attention modules, counted from 0 in the order in which the model calls them (encoder before decoder,
        self-attention before cross-attention); all by default.

    Returns
    -------
    Circuits
        With a record for every head and circuit: ``layer``, ``head``, ``circuit`` ("QK" or "OV"), ``module``,
        ``key_head`` (heads that share keys have the same), ``rank``;
        ``frobenius`` (norm), ``stable_rank``, ``largest`` (singular value), ``edge`` (what the largest singular value
        of random weights exceeds with probability 0.01), ``largest_over_edge``, ``p_largest`` (Tracy-Widom),
        ``spikes`` (how many values are beyond the edge), ``signal_energy`` (their share of the squared norm),
        ``distance`` (Kolmogorov, all squared values to the law) and ``null_distance`` (its median for random weights);
        ``bias`` and ``bias_norm``. nan stands where a circuit is zero.

    Raises
    ------
    StoreError
        If files are missing, damaged, or named by an index in a way that leaves the folder.
    DomainError
        If no attention has a known layout (the message lists the tensors), if shapes contradict the configuration, or
        if weights are quantised or not finite.

    Notes
    -----
    The circuits are of the weights alone: without the factor ``1/sqrt(dim)`` of the scores, and without gains of the
    norms before or between. A bias is not part of them. Of those of queries and keys the softmax sees one term, the
    bias of the queries on the keys, ``K b_Q``: its length is ``bias_norm`` of the QK circuit. That of the values adds
    the same vector ``O b_V`` to every row: its length is that of the OV circuit. Both do not depend on the gauge.

    Under rotary positions ``Q K'`` is the circuit between tokens at the same position (offset zero).

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    >>> with TemporaryDirectory() as folder:
    ...     BertModel(config).save_pretrained(folder)
    ...     found = scan_weights(folder)
    >>> found.architecture, len(found.table)                            # a row for each circuit of each head
    ('bert', 16)
    """
    checkpoint = open_checkpoint(path)
    found = find_attentions(checkpoint)
    chosen = _choose_layers(layers, len(found))
    members = [_circuit(checkpoint, layer, found[layer], kind) for layer in track(chosen, "layers") for kind in FACTORS]
    architecture = str(checkpoint.config.get("model_type") or "model")
    return Circuits(tuple(members), architecture, _notes(checkpoint, found, members))


def _choose_layers(layers: Iterable[int] | None, count: int) -> Sequence[int]:
    if layers is None:
        return range(count)
    domain = Integers(0, count - 1)
    chosen = sorted({domain.check("layers", each) for each in layers})
    if not chosen:
        raise DomainError(f"layers is empty; there are the layers 0 to {count - 1}")
    return chosen


def _circuit(checkpoint: ModelCheckpoint, layer: int, attention: AttentionWeights, kind: CircuitName) -> LayerCircuits:
    """One circuit of all heads of a module, some groups of heads at a time."""
    left, right = FACTORS[kind]
    null = RandomCircuit.of(attention.widths[left], attention.dims[left], attention.widths[right])
    entries = attention.group * attention.dims[left] * max(attention.widths[left], attention.widths[right])
    step = max(1, ENTRIES // entries)
    every = range(attention.key_heads)
    pieces = [_heads(checkpoint, attention, kind, every[start : start + step]) for start in every[::step]]
    values, norms = (np.concatenate(each) for each in zip(*pieces, strict=True))
    biased = attention.bias_name(checkpoint, left) is not None
    return LayerCircuits(layer, attention.module, kind, null, values, attention.group, biased, norms)


def _heads(
    checkpoint: ModelCheckpoint, attention: AttentionWeights, kind: CircuitName, groups: range
) -> tuple[Real, Real]:
    """Singular values of the circuits of the heads of some groups, and the length of what the bias adds."""
    left, right = FACTORS[kind]
    cores = [_core(checkpoint, attention, part, groups) for part in (left, right)]
    bias = attention.bias(checkpoint, left, groups)
    values = singular_values(cores[0] @ cores[1].transpose(0, 2, 1))
    if bias is None:
        return values, np.zeros(len(values))
    vectors = np.repeat(bias.astype(float), attention.group // (len(bias) // len(groups)), axis=0)
    # a factor and its core differ by orthonormal columns: lengths of what they make of a vector are the same
    return values, np.linalg.norm(np.einsum("hij,hj->hi", cores[1], vectors), axis=-1)


def _core(checkpoint: ModelCheckpoint, attention: AttentionWeights, part: ProjectionName, groups: range) -> Real:
    """The triangular factor of each head's matrix, of shape (heads, dim, dim), in double precision."""
    cores = _triangular(attention.weights(checkpoint, part, groups).astype(float))
    return cores if part in {"query", "output"} else np.repeat(cores, attention.group, axis=0)


def _triangular(matrices: Real) -> Real:
    """Square roots R of the Gram matrices, ``R'R = A'A``.

    Cholesky's is several times faster than a QR decomposition, and loses as many digits as the condition number of the
    Gram matrix has: six at most are allowed to go.
    """
    gram = matrices.transpose(0, 2, 1) @ matrices
    values = np.linalg.eigvalsh(gram)
    if np.all(values[:, 0] > 1e-6 * values[:, -1]):
        return np.linalg.cholesky(gram).transpose(0, 2, 1)
    return np.asarray(np.linalg.qr(matrices, mode="r"))


# -- random weights ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomCircuit:
    """A circuit of random weights, which the numbers of a head are compared with."""

    shape: tuple[int, int, int]  # width of the left factor, dimension that both share, width of the right factor
    law: ProductLaw  # of the squared singular values, in units of their mean
    edge: float  # what the largest of them exceeds with probability :data:`LEVEL`
    root: float  # mean of the singular values themselves under the law

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, left: int, dim: int, right: int) -> RandomCircuit:
        """The null of heads of a given shape."""
        small, *others = sorted((left, dim, right))
        # on the smallest of the three spaces the product has no kernel, and the law no atom
        law = ProductLaw(tuple(small / each for each in others))
        return cls((left, dim, right), law, law.finite_edge(small, LEVEL), law.sqrt().mean())

    @property
    def size(self) -> int:
        """How many singular values are not zero."""
        return min(self.shape)

    def scale(self, values: Real) -> Real:
        """The mean of squared singular values that random weights would have, for these."""
        return (values.mean(axis=-1) / self.root) ** 2

    def distance(self, values: Real) -> Real:
        """Kolmogorov distance between all squared singular values of a head and the law."""
        scale = self.scale(values)[..., None]
        unit = np.divide(values**2, scale, out=np.zeros_like(values), where=scale > 0)
        upto = np.arange(1, self.size + 1) / self.size
        at = self.law.cdf(unit)
        largest = np.maximum(np.abs(upto - at), np.abs(upto - 1 / self.size - at)).max(axis=-1)
        return np.where(scale[..., 0] > 0, largest, np.nan)

    def p_largest(self, values: Real) -> Real:
        """Probability that the largest singular value of random weights is as far out, in the Tracy-Widom limit."""
        scale = self.scale(values)
        there = scale > 0
        top = np.divide(values[..., -1] ** 2, scale, out=np.zeros_like(scale), where=there)
        beyond = (top - self.law.edge) / (self.law.edge_scale * self.size ** (-2 / 3))
        return np.where(there, TracyWidom(1).sf(beyond), np.nan)

    @cached_property
    def typical_distance(self) -> float:
        """The median distance of random weights of this shape, from 49 draws with a seed of their own."""
        rng = np.random.default_rng(0)
        return float(np.median(self.distance(np.stack([self.draw(rng) for _ in range(49)]))))

    def draw(self, rng: np.random.Generator) -> Real:
        """Singular values of a random circuit."""
        left, dim, right = self.shape
        return singular_values(_triangle(left, dim, rng) @ _triangle(right, dim, rng).T)


def _triangle(width: int, dim: int, rng: np.random.Generator) -> Real:
    """The triangular factor of a Gaussian matrix of shape (width, dim); the matrix itself if it is not tall."""
    if width < dim:
        return rng.standard_normal((width, dim))
    triangle = np.triu(rng.standard_normal((dim, dim)), 1)
    np.fill_diagonal(triangle, np.sqrt(rng.chisquare(width - np.arange(dim))))
    return triangle


def singular_values(matrices: Real) -> Real:
    """Singular values of each of a stack of matrices."""
    return np.linalg.svd(matrices, compute_uv=False)[..., ::-1]


# -- notes -------------------------------------------------------------------------------------------------------------


def _notes(
    checkpoint: ModelCheckpoint, found: Sequence[AttentionWeights], members: Sequence[LayerCircuits]
) -> tuple[str, ...]:
    notes = []
    if any(each.rotary for each in found):
        notes.append("Positions are rotary: QK circuits are those between tokens at the same position (offset zero).")
    if any(re.search(r"(^|\.)(q|k|query|key)_?(layer)?norm\b", name) for name in checkpoint.tensors):
        gains = "QK circuits are without these norms and their gains"
        notes.append(f"Queries or keys are normalised before the scores: {gains}.")
    if any(each.biased for each in members):
        added = "bias_norm is the length of what they add"
        notes.append(f"Projections have biases, which are not part of the circuits; {added}.")
    if left := unread_matrices(checkpoint, found):
        named = ", ".join(map(shown, left[:3]))
        notes.append(f"{len(left)} matrices whose names speak of attention were not read, as {named}.")
    return tuple(notes)
