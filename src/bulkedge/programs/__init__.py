"""Tensor programs with dot products: one graph, run at width n or in the limit of infinite width."""

from bulkedge.programs.activations import (
    ACTIVATIONS,
    CLIP,
    GELU,
    IDENTITY,
    RELU,
    SOFTPLUS,
    TANH,
    PiecewiseLinear,
    Smooth,
)
from bulkedge.programs.attention import Attention, Block, Perceptron, attention_layer, layer_norm, stack
from bulkedge.programs.graph import (
    Program,
    center,
    dot,
    linear,
    moment,
    nonlin,
    scalar,
    softmax,
    sum_copies,
    trace,
    weight,
)

__all__ = [
    # writing
    "Program",
    "trace",
    "weight",
    "linear",
    "nonlin",
    "dot",
    "moment",
    "center",
    "scalar",
    "softmax",
    "sum_copies",
    # activations
    "ACTIVATIONS",
    "IDENTITY",
    "RELU",
    "CLIP",
    "GELU",
    "SOFTPLUS",
    "TANH",
    "PiecewiseLinear",
    "Smooth",
    # ready pieces and programs
    "Attention",
    "Perceptron",
    "layer_norm",
    "Block",
    "attention_layer",
    "stack",
]
