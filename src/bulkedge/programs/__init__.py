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
from bulkedge.programs.attention import (
    Attention,
    Block,
    Perceptron,
    attention_layer,
    equal_correlations,
    layer_norm,
    stack,
)
from bulkedge.programs.distances import energy_distance, estimate, kl_divergence, sliced_wasserstein, two_sample_test
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
from bulkedge.programs.mixture import FiniteMixture, HeadMixture, infinite_head_kernel, infinite_head_layer
from bulkedge.programs.training import Training, TrainingCurves, train

__all__ = [
    # writing
    "Program", "trace", "weight", "linear", "nonlin", "dot", "moment", "center", "scalar", "softmax", "sum_copies",
    # activations
    "ACTIVATIONS", "IDENTITY", "RELU", "CLIP", "GELU", "SOFTPLUS", "TANH", "PiecewiseLinear", "Smooth",
    # ready pieces and programs
    "Attention", "Perceptron", "layer_norm", "Block", "equal_correlations", "attention_layer", "stack",
    # the limit in quadrature
    "HeadMixture", "FiniteMixture", "infinite_head_kernel", "infinite_head_layer",
    # training
    "Training", "TrainingCurves", "train",
    # distances between draws
    "estimate", "kl_divergence", "energy_distance", "sliced_wasserstein", "two_sample_test",
]  # fmt: skip
