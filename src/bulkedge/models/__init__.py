"""Trained models: how they are loaded, what their heads see and do, and what a scan says of them.

What needs torch (:data:`LAZY`) loads it when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bulkedge.models.packaged import MODELS, TEXTS, packaged_model, sample_text
from bulkedge.models.weights import TABLES, embedding_table

if TYPE_CHECKING:
    from bulkedge.models.ablation import ablate_heads
    from bulkedge.models.circuits import Circuits, scan_weights
    from bulkedge.models.layers import Layer, Visit, capture, stream
    from bulkedge.models.results import Scan, compare_scans, load_scan
    from bulkedge.models.scanning import scan

__all__ = [
    "MODELS",
    "TABLES",
    "TEXTS",
    "Circuits",
    "Layer",
    "Scan",
    "Visit",
    "ablate_heads",
    "capture",
    "compare_scans",
    "embedding_table",
    "load_scan",
    "packaged_model",
    "sample_text",
    "scan",
    "scan_weights",
    "stream",
]

LAZY = {
    "ablation": ("ablate_heads",),
    "circuits": ("Circuits", "scan_weights"),
    "layers": ("Layer", "Visit", "capture", "stream"),
    "results": ("Scan", "compare_scans", "load_scan"),
    "scanning": ("scan",),
}
"""Modules that need torch or laws, and what is public in them."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for home, names in LAZY.items():
            if name in names:
                return getattr(import_module(f"bulkedge.models.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
