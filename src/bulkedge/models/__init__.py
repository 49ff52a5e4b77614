"""Trained models: how they are loaded, what their heads see and do, and what a scan says of them.

What needs torch (:data:`LAZY`) loads it when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bulkedge.errors import MissingPackageError
from bulkedge.models.packaged import MODELS, TEXTS, packaged_model, sample_text
from bulkedge.models.weights import TABLES, embedding_table

if TYPE_CHECKING:
    from bulkedge.models.ablation import ablate_heads
    from bulkedge.models.alarms import Alarm
    from bulkedge.models.attending import Layer
    from bulkedge.models.circuits import Circuits, scan_weights
    from bulkedge.models.default import default_model, held_out_loss
    from bulkedge.models.layers import Visit, capture, stream
    from bulkedge.models.loading import load_model
    from bulkedge.models.probing import ordinary_tokens, probe
    from bulkedge.models.results import Scan, compare_scans, load_scan
    from bulkedge.models.scanning import scan
    from bulkedge.models.watching import Watch, watch

__all__ = [
    "MODELS",
    "TABLES",
    "TEXTS",
    "Alarm",
    "Circuits",
    "Layer",
    "Scan",
    "Visit",
    "Watch",
    "ablate_heads",
    "capture",
    "compare_scans",
    "default_model",
    "embedding_table",
    "held_out_loss",
    "load_model",
    "load_scan",
    "ordinary_tokens",
    "packaged_model",
    "probe",
    "sample_text",
    "scan",
    "scan_weights",
    "stream",
    "watch",
]

LAZY = {
    "ablation": ("ablate_heads",),
    "alarms": ("Alarm",),
    "circuits": ("Circuits", "scan_weights"),
    "default": ("default_model", "held_out_loss"),
    "attending": ("Layer",),
    "layers": ("Visit", "capture", "stream"),
    "loading": ("load_model",),
    "probing": ("ordinary_tokens", "probe"),
    "results": ("Scan", "compare_scans", "load_scan"),
    "scanning": ("scan",),
    "watching": ("Watch", "watch"),
}
"""Modules that need torch or laws, and what is public in them."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for home, names in LAZY.items():
            if name in names:
                try:
                    return getattr(import_module(f"bulkedge.models.{home}"), name)
                except ModuleNotFoundError as error:
                    words = f"bulkedge.models.{name} needs torch and transformers: pip install 'bulkedge[torch]'"
                    raise MissingPackageError(words) from error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
