"""A callback for the Trainer of transformers; the class is made when transformers is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bulkedge.errors import MissingPackageError

if TYPE_CHECKING:
    from bulkedge.models.watching import Watch


def callback(watched: Watch) -> Any:
    """A callback that tells a watch the steps of a Trainer, and adds its metrics to what is logged in training.

    Parameters
    ----------
    watched : Watch
        What watches the model.

    Returns
    -------
    transformers.TrainerCallback
        Its only state is the watch.
    """
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
