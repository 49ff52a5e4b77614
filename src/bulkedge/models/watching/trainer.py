"""Callbacks for the Trainers of transformers and of Lightning; the classes are made when these are there."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bulkedge.support.errors import MissingPackageError

if TYPE_CHECKING:
    from bulkedge.models.watching.watcher import Watch

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
"""Names under which Lightning is installed."""


def callback(watched: Watch) -> Any:
    """A callback that tells a watch the steps of a Trainer, and adds its metrics to what is logged in training."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingPackageError("the callback needs transformers: pip install 'bulkedge[torch]'") from error

    base: Any = TrainerCallback

    class Attention(base):  # type: ignore[misc]
        """Adds keys at logging, and nothing else."""

        def on_step_begin(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
            watched.at(state.global_step)

        def on_log(self, _arguments: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            if logs is None or "loss" not in logs:  # evaluation, or the summary at the end
                return
            found = watched.metrics()
            logs.update(found)
            if state.log_history:
                state.log_history[-1].update(found)

    return Attention()


def lightning_callback(watched: Watch) -> Any:
    """A callback that tells a watch the steps of Lightning's Trainer, and logs its metrics when that logs."""
    name = next((each for each in LIGHTNING if find_spec(each.partition(".")[0]) is not None), None)
    base: Any = object if name is None else import_module(name).Callback

    class Attention(base):  # type: ignore[misc]
        """Logs keys in training, and nothing else."""

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            watched.at(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if watched.seen and trainer.global_step % trainer.log_every_n_steps == 0:
                module.log_dict(watched.metrics())

    return Attention()
