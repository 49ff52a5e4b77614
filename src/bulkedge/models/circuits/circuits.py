"""The circuits of every head from the weights alone: no input, no model in memory.

A head scores by ``x Q K' y'`` and writes ``y V O'``: the matrices ``Q K'`` (QK circuit) and ``V O'`` (OV circuit) are
all that its weights do. Their factors are not unique: ``Q G`` and ``K inv(G)'`` are the same head for every invertible
G. So every number here is one of the product.

With Q of shape (width, dim) the product is width x width and of rank dim. Its singular values are those of the small
core ``R_Q R_K'``, with R the triangular factors; the large matrix is never formed.

Random weights are the null, :class:`~bulkedge.models.circuits.random_circuits.RandomHead`. Their scale, the product of
the two variances, depends on the gauge that the file has. It is taken in the gauge where the factors are shortest:
there the squared length of both is the sum of the singular values, which depends on the product alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bulkedge.laws.classical.product import ProductLaw
from bulkedge.laws.units import Unit
from bulkedge.models.circuits.layouts import Part
from bulkedge.models.circuits.projections import Attention, find_attentions, unread
from bulkedge.models.circuits.random_circuits import LEVEL, RandomHead, singular_values
from bulkedge.models.loading.checkpoints import Checkpoint, open_checkpoint
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, shown
from bulkedge.support.errors import DomainError, need
from bulkedge.support.progress import track
from bulkedge.support.records import to_json
from bulkedge.version import __version__

Kind = Literal["QK", "OV"]
KIND = Choice(("QK", "OV"))
FACTORS: dict[Kind, tuple[Part, Part]] = {"QK": ("query", "key"), "OV": ("value", "output")}
ENTRIES = 2**22
"""Entries of a factor that are decomposed at a time, 32 MiB in double precision; one group of heads at least."""
WELL_CONDITIONED = 1e-6
"""Smallest over largest eigenvalue of a Gram matrix from which on its square root is computed from itself."""


@dataclass(frozen=True, eq=False)
class LayerCircuits:
    """One circuit of all heads of one attention module; arrays are over its heads.

    Attributes
    ----------
    layer : int
        Which attention module, in the order in which the model calls them.
    module : str
        Its path in the checkpoint.
    circuit : {"QK", "OV"}
        Which of the two.
    null : RandomHead
        Heads of this shape with random weights.
    singular : array of shape (heads, size)
        Singular values, in increasing order.
    group : int
        Successive heads that share a key head.
    biased : bool
        Whether the projections have a bias that this circuit adds to.
    bias_norm : array of shape (heads,)
        Length of what the bias adds; see :func:`scan_weights`.
    """

    layer: int
    module: str
    circuit: Kind
    null: RandomHead
    singular: Real
    group: int
    biased: bool
    bias_norm: Real

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
            "null_distance": np.full(len(top), null.typical_distance()),
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
        """A dictionary for each head and circuit.

        Returns
        -------
        list of dict
            As :func:`scan_weights` lists them, layer by layer.
        """
        return [record for each in self.members for record in each.records()]

    @property
    def table(self) -> Any:
        """The records as a pandas DataFrame."""
        need("a table", "pandas", install="pandas; records() has the same without")
        return import_module("pandas").DataFrame(self.records())

    def to_json(self) -> str:
        """The records as JSON.

        Returns
        -------
        str
            An object with the version, the architecture, the level of the edge, the notes and the records.
        """
        head = {"version": __version__, "architecture": self.architecture, "level": LEVEL, "notes": self.notes}
        return to_json(head | {"records": self.records()})

    def spectrum(self, layer: int, head: int, circuit: Kind) -> Spectrum:
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

    def law(self, layer: int, head: int, circuit: Kind) -> ProductLaw:
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
        KIND.check("circuit", circuit)
        for each in self.members:
            if (each.layer, each.circuit) == (layer, circuit) and 0 <= head < len(each.singular):
                return each
        raise DomainError(f"layer = {layer!r}, head = {head!r} was not read; the layers are {self._layers()}")

    def _layers(self) -> list[int]:
        return list(dict.fromkeys(each.layer for each in self.members))

    def summary(self) -> str:
        """The findings in a few sentences.

        Returns
        -------
        str
            How many heads are beyond random weights, and the strongest.
        """
        heads = sum(len(each.singular) for each in self.members if each.circuit == "QK")
        opening = (
            f"{self.architecture}: {heads} heads of {len(self._layers())} attention modules, by their weights alone."
        )
        return "\n".join([opening, *(self._said(kind) for kind in FACTORS), *self.notes])

    def _said(self, kind: Kind) -> str:
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
    """
    checkpoint = open_checkpoint(path)
    found = find_attentions(checkpoint)
    chosen = _chosen(layers, len(found))
    members: list[LayerCircuits] = []
    for layer in track(chosen, "layers"):
        members += [_circuit(checkpoint, layer, found[layer], kind) for kind in FACTORS]
    architecture = str(checkpoint.config.get("model_type") or "model")
    return Circuits(tuple(members), architecture, _notes(checkpoint, found, members))


def _chosen(layers: Iterable[int] | None, count: int) -> Sequence[int]:
    if layers is None:
        return range(count)
    domain = Integers(0, count - 1)
    chosen = sorted({domain.check("layers", each) for each in layers})
    if not chosen:
        raise DomainError(f"layers is empty; there are the layers 0 to {count - 1}")
    return chosen


def _circuit(checkpoint: Checkpoint, layer: int, attention: Attention, kind: Kind) -> LayerCircuits:
    """One circuit of all heads of a module, some groups of heads at a time."""
    left, right = FACTORS[kind]
    null = RandomHead.of(attention.widths[left], attention.dims[left], attention.widths[right])
    entries = attention.group * attention.dims[left] * max(attention.widths[left], attention.widths[right])
    step = max(1, ENTRIES // entries)
    starts = range(0, attention.key_heads, step)
    pieces = [
        _heads(checkpoint, attention, kind, range(start, min(start + step, attention.key_heads))) for start in starts
    ]
    values, norms = (np.concatenate(each) for each in zip(*pieces, strict=True))
    biased = attention.bias_name(checkpoint, left) is not None
    return LayerCircuits(layer, attention.module, kind, null, values, attention.group, biased, norms)


def _heads(checkpoint: Checkpoint, attention: Attention, kind: Kind, groups: range) -> tuple[Real, Real]:
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


def _core(checkpoint: Checkpoint, attention: Attention, part: Part, groups: range) -> Real:
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
    if np.all(values[:, 0] > WELL_CONDITIONED * values[:, -1]):
        return np.linalg.cholesky(gram).transpose(0, 2, 1)
    return np.asarray(np.linalg.qr(matrices, mode="r"))


# -- notes -------------------------------------------------------------------------------------------------------------


def _notes(checkpoint: Checkpoint, found: Sequence[Attention], members: Sequence[LayerCircuits]) -> tuple[str, ...]:
    normed = re.compile(r"(^|\.)(q|k|query|key)_?(layer)?norm\b")
    left = unread(checkpoint, found)
    named = ", ".join(map(shown, left[:3]))
    notes = {
        "Positions are rotary: QK circuits are those between tokens at the same position (offset zero).": any(
            each.rotary for each in found
        ),
        "Queries or keys are normalised before the scores: QK circuits are without these norms and their gains.": any(
            normed.search(name) for name in checkpoint.tensors
        ),
        "Projections have biases, which are not part of the circuits; bias_norm is the length of what they add.": any(
            each.biased for each in members
        ),
        f"{len(left)} matrices whose names speak of attention were not read, as {named}.": bool(left),
    }
    return tuple(note for note, holds in notes.items() if holds)
