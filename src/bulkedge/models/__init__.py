"""Trained models: how they are loaded, what their heads see and do, and what a scan says of them.

What needs torch (:data:`LAZY`) loads it when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bulkedge.models.loading.packaged import MODELS, TABLES, TEXTS, embedding_table, packaged_model, sample_text
from bulkedge.support.errors import MissingPackageError

if TYPE_CHECKING:
    from bulkedge.models.circuits.circuits import Circuits, scan_weights
    from bulkedge.models.hooks.attention_inputs import AttentionLayer
    from bulkedge.models.hooks.capture import Visit, capture, stream
    from bulkedge.models.initialisation.findings import Finding
    from bulkedge.models.initialisation.report import Preflight, preflight
    from bulkedge.models.loading.default import default_model, held_out_loss
    from bulkedge.models.loading.loader import load_model
    from bulkedge.models.scanning.importance import ablate_heads
    from bulkedge.models.scanning.probing import probe
    from bulkedge.models.scanning.results import Scan, compare_scans, load_scan
    from bulkedge.models.scanning.scanner import scan
    from bulkedge.models.watching.alarms import Alarm
    from bulkedge.models.watching.bugs import AttentionCheck, Bug, check_attention
    from bulkedge.models.watching.watcher import Watch, load_watch, watch

__all__ = [
    "MODELS", "TABLES", "TEXTS", "Alarm", "AttentionCheck", "AttentionLayer", "Bug", "Circuits", "Finding", "Preflight",
    "Scan", "Visit", "Watch", "ablate_heads", "capture", "check_attention", "compare_scans", "default_model",
    "embedding_table", "held_out_loss", "load_model", "load_scan", "load_watch", "packaged_model", "preflight", "probe",
    "sample_text", "scan", "scan_weights", "stream", "watch",
]  # fmt: skip

LAZY = {
    "circuits.circuits": ("Circuits", "scan_weights"),
    "hooks.attention_inputs": ("AttentionLayer",),
    "hooks.capture": ("Visit", "capture", "stream"),
    "loading.default": ("default_model", "held_out_loss"),
    "loading.loader": ("load_model",),
    "initialisation.findings": ("Finding",),
    "initialisation.report": ("Preflight", "preflight"),
    "scanning.importance": ("ablate_heads",),
    "scanning.probing": ("probe",),
    "scanning.results": ("Scan", "compare_scans", "load_scan"),
    "scanning.scanner": ("scan",),
    "watching.alarms": ("Alarm",),
    "watching.bugs": ("AttentionCheck", "Bug", "check_attention"),
    "watching.watcher": ("Watch", "load_watch", "watch"),
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
