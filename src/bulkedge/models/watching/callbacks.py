"""What trainers and plain loops call: the metrics of a watch where the loss is logged, its readings in checkpoints.

>>> from types import SimpleNamespace
>>> sent = []
>>> watched = SimpleNamespace(readings=1, metrics=lambda: {"attention/alarms": 0.0})
>>> after = metric_logger(watched, lambda found, step: sent.append((step, found)))
>>> after(0), after(1)                                         # one new reading, one report
(True, False)
>>> sent
[(0, {'attention/alarms': 0.0})]
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from bulkedge.support.errors import need


def metric_logger(watched: Any, send: Callable[..., Any]) -> Callable[[int], bool]:
    """A function of the step that sends the metrics if there is a new reading, and says whether it did."""
    reported = 0

    def after(step: int) -> bool:
        nonlocal reported
        if watched.readings <= reported:
            return False
        reported = watched.readings
        send(watched.metrics(), step=step)
        return True

    return after


def transformers_callback(watched: Any) -> Any:
    """A callback of transformers' Trainer that adds the metrics to what is logged."""
    need("the callback", "transformers")
    base: Any = import_module("transformers").TrainerCallback

    class TransformersMetrics(base):  # type: ignore[misc]
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

    return TransformersMetrics()


class LightningMetrics:
    """A callback of Lightning's Trainer: logs keys in training, and keeps readings in its checkpoints.

    Lightning is not imported. Its Trainer calls hooks by their names, and this one has them all: those that are not
    defined here do nothing.
    """

    state_key = "bulkedge.Watch"

    def __init__(self, watched: Any) -> None:
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("on_", "_on_")) or name in {"setup", "teardown"}:
            return lambda *_, **__: None
        raise AttributeError(name)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Say which step comes next: batches that accumulate gradients count once."""
        self._watched.at(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        """Log the metrics as often as the Trainer logs."""
        if self._watched.seen and trainer.global_step % trainer.log_every_n_steps == 0:
            module.log_dict(self._watched.metrics())

    def state_dict(self) -> dict[str, Any]:
        """The readings, for the checkpoint."""
        found: dict[str, Any] = self._watched.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the readings of a checkpoint."""
        self._watched.load_state_dict(state)
