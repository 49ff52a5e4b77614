"""Trained models: weights that packages carry, and what their heads see.

``capture`` and ``stream`` need torch, and load it when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bulkedge.models.packaged import MODELS, TEXTS, packaged_model, sample_text
from bulkedge.models.weights import TABLES, embedding_table

if TYPE_CHECKING:
    from bulkedge.models.ablation import ablate_heads
    from bulkedge.models.layers import Layer, Visit, capture, stream

__all__ = [
    "MODELS",
    "TABLES",
    "TEXTS",
    "Layer",
    "Visit",
    "ablate_heads",
    "capture",
    "embedding_table",
    "packaged_model",
    "sample_text",
    "stream",
]

LAZY = {"ablate_heads": "ablation", "Layer": "layers", "Visit": "layers", "capture": "layers", "stream": "layers"}
"""Where names are that need torch."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"bulkedge.models.{LAZY[name]}"), name)
