"""Signal recovery from pooled sequences (*recovery*): weights, correlations, classifiers, embedding tables.

The random matrices themselves, :class:`bulkedge.PooledSequences` and :class:`bulkedge.PooledMixture`, are ensembles.
"""

from bulkedge.ensembles.correlations import (
    autoregressive_correlation,
    draw_signs,
    prefix_correlation,
    spiked_correlation,
)
from bulkedge.ensembles.weights import (
    causal_noise,
    causal_signal,
    causal_weights,
    mean_weights,
    optimal_weights,
    pool,
    self_attention_spread,
    self_attention_weights,
)
from bulkedge.recovery.classifier import LabelledSequences, LabelledSigns, RidgeClassifier, prefix_majority
from bulkedge.recovery.learned import LearnedWeights, learned_weights
from bulkedge.recovery.tables import TableFit, TableSpectrum, table_spectrum

__all__ = [
    "LabelledSequences",
    "LabelledSigns",
    "LearnedWeights",
    "RidgeClassifier",
    "TableFit",
    "TableSpectrum",
    "autoregressive_correlation",
    "causal_noise",
    "causal_signal",
    "causal_weights",
    "draw_signs",
    "learned_weights",
    "mean_weights",
    "optimal_weights",
    "pool",
    "prefix_correlation",
    "prefix_majority",
    "self_attention_spread",
    "self_attention_weights",
    "spiked_correlation",
    "table_spectrum",
]
