"""Attention in training, at the cost of moments: spreads of scores, entropies, largest logits and sinks of every head.

>>> import torch
>>> from transformers import GPT2Config, GPT2Model
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32)).train()
>>> with watch(model, every=2) as watched:
...     for _ in range(4):
...         output = model(input_ids=torch.arange(24)[None])
>>> watched.data.sizes["step"], watched.data.sizes["layer"], watched.data.sizes["head"]
(2, 2, 4)
>>> watched.alarms
()
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import xarray as xr

from bulkedge.models.hooks.attention_hooks import AttentionInputs, TrainingHooks
from bulkedge.models.watching.alarms import RATE, Alarm, find_alarms
from bulkedge.models.watching.measures import NAMES, readings
from bulkedge.support.domains import Integers, Interval
from bulkedge.support.errors import DomainError, MissingPackageError, StoreError
from bulkedge.support.records import to_json

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

TOGETHER = 2**26
"""Entries of queries and keys of which layers are read together; larger layers are read one by one."""
RESIDUAL = "measured less predicted entropy of the rows that are read exactly (nats)"
SHOWN = {
    "entropy": ("entropy", "mean"),
    "expected_entropy": ("expected_entropy", "mean"),
    "predicted_entropy": ("predicted_entropy", "mean"),
    "residual": ("residual", "mean"),
    "beta": ("beta", "mean"),
    "beta_max": ("beta", "max"),
    "logit_max": ("logit", "max"),
    "logit_bound": ("logit_bound", "max"),
    "dimension": ("dimension", "mean"),
    "coupling_max": ("coupling", "max"),
    "likeness": ("likeness", "mean"),
    "first_mass_max": ("first_mass", "max"),
    "popular_mass_max": ("popular_mass", "max"),
    "expected_popular_max": ("expected_popular", "max"),
}
"""Metrics of a layer: what they are called, of which reading they are, and what is taken over its heads."""


def watch(model: nn.Module, every: int = 50, *, rows: int = 32, rate: float = RATE) -> Watch:
    """Watch the attention of a model while it trains.

    Use it as a context manager around the training loop. In every ``every``-th forward pass in training mode, the
    first included, all attentions are read; outputs, gradients and kernels are those of the model, bit for bit, and
    the host waits for nothing until a result is asked for. (Passes of compiled models that are read run uncompiled,
    which rounds differently.)

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model whose attention goes through the ``AttentionInterface`` (eager, sdpa or flash), any module
        around one, or one with ``torch.nn.MultiheadAttention`` inside. Of a compiled model give what is called:
        what ``torch.compile`` returned, not what it was given.
    every : int
        Steps from one reading to the next.
    rows : int
        Rows of each of up to eight sequences of the batch that are read exactly, evenly spaced.
    rate : float
        Chance of a false alarm of a reading that jumps, in a hundred readings of all heads, if changes are as they were
        (:mod:`bulkedge.models.watching.alarms`).

    Returns
    -------
    Watch
        To be entered; it keeps what was read.

    Raises
    ------
    DomainError
        In a forward pass, if an attention is none that can be read; at the end, if none was seen.
    """
    every, rows = Integers(1, 10**9).check("every", every), Integers(1, 4096).check("rows", rows)
    return Watch(model, every, rows, Interval(1e-12, 0.5).check("rate", rate))


class Watch:
    """What :func:`watch` sees.

    Attributes
    ----------
    step : int
        Number of the next forward pass in training mode; a loop that accumulates gradients may set it to its own count
        of steps before each pass, and only the first pass of a step is read then.
    """

    def __init__(self, model: nn.Module, every: int, rows: int, rate: float) -> None:
        """Nothing is done to the model before it is entered."""
        self.step = 0
        self._model, self._every, self._rows, self._rate = model, every, rows, rate
        self._stack = ExitStack()
        self._counting, self._last, self._passes = True, -1, 0
        self._calls: list[str] = []
        self._queue: list[tuple[AttentionInputs, list[int]]] = []
        self._pending: list[tuple[int, list[str], Tensor]] = []
        self._read: dict[tuple[int, str], Any] = {}

    def __repr__(self) -> str:
        """What was seen."""
        steps = {step for step, _ in self._keys()}
        return f"<Watch of {type(self._model).__name__}: {len(steps)} readings in {self._passes} passes>"

    def __enter__(self) -> Self:
        """Put hooks on the model."""
        self._stack.enter_context(TrainingHooks(self._wanted, self._enqueue, self._flush).on(self._model))
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave the model as it was found; a watch that saw nothing says so, unless something else went wrong."""
        self._stack.close()
        if kind is None:
            self._check()

    @property
    def seen(self) -> bool:
        """Whether anything was read so far."""
        return bool(self._read or self._pending)

    def at(self, step: int) -> None:
        """Say which step of the training comes next, and stop counting forward passes.

        Parameters
        ----------
        step : int
            Number of the step, as the training counts them.
        """
        self.step, self._counting = Integers(0, 2**62).check("step", step), False

    def _wanted(self) -> bool:
        now, self._passes, self._calls = self.step, self._passes + 1, []
        if self._counting:
            self.step += 1
        wanted = now % self._every == 0 and now != self._last
        if wanted:
            self._last = now
        return wanted

    def _enqueue(self, layer: AttentionInputs) -> None:
        # a module that is called again in the same pass, as shared layers are, is a layer of its own
        self._calls.append(layer.name)
        again = self._calls.count(layer.name)
        layer = layer if again == 1 else layer._replace(name=f"{layer.name}#{again}")
        waiting = sum(each.entries for each, _ in self._queue)
        if self._queue and (waiting + layer.entries > TOGETHER or not layer.fits(self._queue[0][0])):
            self._flush()
        self._queue.append((layer, layer.versions))

    def _flush(self) -> None:
        """Read the layers that wait for it; their queries and keys are let go."""
        queue, self._queue = self._queue, []
        if not queue:
            return
        for layer, versions in queue:
            if versions != layer.versions:
                raise DomainError(f"queries or keys of {layer.name} were changed in place before they could be read")
        found = readings([layer for layer, _ in queue], self._rows)
        self._pending.append((self._last, [layer.name for layer, _ in queue], found))

    def _keys(self) -> list[tuple[int, str]]:
        return [*self._read, *((step, name) for step, names, _ in self._pending for name in names)]

    def _check(self) -> None:
        if self.seen:
            return
        why = (
            "neither transformers' AttentionInterface nor torch.nn.MultiheadAttention was called"
            if self._passes
            else "it was not called in training mode; if a part of it, or what torch.compile made of it, is called by "
            "itself, watch that"
        )
        raise DomainError(f"no attention of {type(self._model).__name__} was seen: {why}")

    def _fetch(self) -> None:
        """Bring to the host what was read since the last time; the only place that waits for the device."""
        for step, names, found in self._pending:
            numbers = found.cpu().double().numpy()
            self._read |= {(step, name): numbers[:, n] for n, name in enumerate(names)}
        self._pending.clear()

    @property
    def data(self) -> xr.Dataset:
        """All readings, by step, layer and head; :data:`bulkedge.models.watching.measures.NAMES` says what they are."""
        self._check()
        self._fetch()
        steps = sorted({step for step, _ in self._read})
        layers = list(dict.fromkeys(name for _, name in self._read))
        heads = max(each.shape[1] for each in self._read.values())
        values = np.full((len(NAMES), len(steps), len(layers), heads), np.nan)
        places = {step: n for n, step in enumerate(steps)}, {name: n for n, name in enumerate(layers)}
        for (step, name), each in self._read.items():
            values[:, places[0][step], places[1][name], : each.shape[1]] = each
        dims = ("step", "layer", "head")
        found = {name: (dims, values[n], {"long_name": words}) for n, (name, words) in enumerate(NAMES.items())}
        data = xr.Dataset(
            found,
            coords={
                "step": steps,
                "layer": np.arange(len(layers)),
                "head": np.arange(heads),
                "module": ("layer", np.array(layers)),
            },
            attrs={"model": type(self._model).__name__, "every": self._every, "rate": self._rate},
        )
        return data.assign(residual=(data.entropy - data.predicted_entropy).assign_attrs(long_name=RESIDUAL))

    @property
    def table(self) -> pd.DataFrame:
        """All readings, a row for each step, layer and head."""
        frame = self.data.to_dataframe().reset_index()
        return frame.dropna(subset=["keys"]).reset_index(drop=True)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What there is to say of the run so far, by steps; :mod:`bulkedge.models.watching.alarms` has the rules."""
        return find_alarms(self.data)

    def metrics(self) -> dict[str, float]:
        """Numbers of the last reading, as trackers of experiments want them.

        Returns
        -------
        dict of str to float
            ``"attention/layer_3/entropy"``, ``"attention/layer_3/beta_max"`` and so on: all of :data:`SHOWN` for each
            layer, and ``"attention/alarms"``, the number of alarms so far that are more than notes.
        """
        last = self.data.isel(step=-1)
        found = {}
        for layer in last.layer.to_numpy().tolist():
            for name, (reading, taken) in SHOWN.items():
                values = last[reading].sel(layer=layer).to_numpy()
                values = values[np.isfinite(values)]
                number = getattr(np, taken)(values) if len(values) else np.nan
                found[f"attention/layer_{layer}/{name}"] = float(number)
        found["attention/alarms"] = float(sum(each.grade != "note" for each in self.alarms))
        return found

    def callback(self) -> Any:
        """A callback for the Trainer of transformers that adds :meth:`metrics` to what is logged.

        It tells the watch the Trainer's steps, so that passes that accumulate gradients count once. Callbacks that were
        in the list before it have read what is logged already: use :meth:`attach`, which puts it first.

        Returns
        -------
        transformers.TrainerCallback
            For ``Trainer(callbacks=[...])``.
        """
        return _transformers_callback(self)

    def lightning(self) -> Any:
        """A callback for Lightning's Trainer that logs :meth:`metrics` as often as that logs.

        It tells the watch the Trainer's steps, so that batches that accumulate gradients count once.

        Returns
        -------
        lightning.pytorch.Callback
            For ``Trainer(callbacks=[...])``.
        """
        return _lightning_callback(self)

    def attach(self, trainer: Any) -> None:
        """Add the callback to a Trainer, before those that report to trackers.

        Parameters
        ----------
        trainer : transformers.Trainer
            Of the model that is watched.
        """
        trainer.callback_handler.callbacks.insert(0, self.callback())

    def plot(self) -> Any:
        """Draw the largest spread, the smallest entropy and the largest residual of each layer along the run.

        Returns
        -------
        matplotlib.figure.Figure
            Alarms are marked.
        """
        from bulkedge import plots

        return plots.plot_watch(self.data, self.alarms)

    def save(self, path: str | Path) -> Path:
        """Save readings and alarms as a Zarr store, which ``xarray.open_zarr(path)`` reads.

        Parameters
        ----------
        path : str or Path
            A folder that is not there yet. Alarms are the attribute ``alarms`` of the store, as JSON.

        Returns
        -------
        Path
            The folder.
        """
        path = Path(path)
        if path.exists():
            raise StoreError(f"{path} is there already; choose another name, or remove it")
        data = self.data.assign_attrs(alarms=to_json([asdict(each) for each in self.alarms]))
        # texts of any length are in the specification of Zarr, those of fixed length are not
        data = data.assign_coords(module=data.module.astype(object))
        data.to_zarr(path, zarr_format=3, consolidated=False)
        return path


def _transformers_callback(watched: Watch) -> Any:
    """A callback that passes a watch the steps of a Trainer, and adds its metrics to what is logged in training."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingPackageError("the callback needs transformers: pip install 'bulkedge[torch]'") from error

    base: Any = TrainerCallback

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


def _lightning_callback(watched: Watch) -> Any:
    """A callback that passes a watch the steps of Lightning's Trainer, and logs its metrics when that logs."""
    names = ("lightning.pytorch", "pytorch_lightning")
    name = next((each for each in names if find_spec(each.partition(".")[0]) is not None), None)
    base: Any = object if name is None else import_module(name).Callback

    class LightningMetrics(base):  # type: ignore[misc]
        """Logs keys in training, and nothing else."""

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            watched.at(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if watched.seen and trainer.global_step % trainer.log_every_n_steps == 0:
                module.log_dict(watched.metrics())

    return LightningMetrics()
