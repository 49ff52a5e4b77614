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

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import xarray as xr

from bulkedge.models.hooks.attention_hooks import (
    during_calls,
    is_compiled,
    observe,
    without_compiler,
)
from bulkedge.models.watching.alarms import RATE, Alarm, AlarmLog, summarise
from bulkedge.models.watching.callbacks import LightningMetrics, metric_logger, transformers_callback
from bulkedge.models.watching.measures import NAMES, check_processes, mean_of_processes
from bulkedge.models.watching.read_pass import ReadPass
from bulkedge.models.watching.updates import SPECTRA, ProjectionFinder, UpdateTracker
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FLAG, MODULE, PATH, Integers, Interval, shown, takes
from bulkedge.support.errors import DomainError, RegimeWarning, StoreError
from bulkedge.support.files import load_dataset, save_dataset, to_json

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

UNSEEN = (
    "Neither transformers' AttentionInterface nor torch.nn.MultiheadAttention, scaled_dot_product_attention or "
    "flex_attention was called by a module with weights. Scores that a model multiplies out itself, and kernels of its "
    "own, are not seen: let it call torch.nn.functional.scaled_dot_product_attention."
)
RESIDUAL = "measured minus predicted entropy of the rows that are read exactly (nats)"
MEANS = "entropy", "expected_entropy", "predicted_entropy", "residual", "beta", "dimension", "likeness"
LARGEST = "beta", "logit", "coupling", "first_mass", "popular_mass", "expected_popular", "update", "future_mass"
SHOWN = {name: (name, "mean") for name in MEANS} | {"logit_bound": ("logit_bound", "max")}
SHOWN |= {f"{name}_max": (name, "max") for name in LARGEST}
"""Metrics of a layer: what they are called, of which reading they are, and what is taken over its heads."""


@takes(model=MODULE, updates=FLAG)
def watch(  # noqa: PLR0913
    model: nn.Module, every: int = 50, *, rows: int = 32, rate: float = RATE, group: Any = None, updates: bool = False
) -> Watch:
    """Watch the attention of a model while it trains.

    Use it as a context manager around the training loop. In every ``every``-th forward pass in training mode, the
    first included, all attentions are read; outputs, gradients and kernels are those of the model, bit for bit, and
    the host waits for nothing until a result is asked for. (Passes of compiled models that are read run uncompiled,
    which rounds differently.)

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model whose attention goes through the ``AttentionInterface`` (eager, sdpa or flash), any module
        around one, or one that calls ``torch.nn.MultiheadAttention``, ``scaled_dot_product_attention`` or
        ``flex_attention``. Of a compiled model, either what ``torch.compile`` returned or what it was given.
    every : int
        Steps from one reading to the next.
    rows : int
        Rows of each of up to eight sequences of the batch that are read exactly, evenly spaced.
    rate : float
        Chance of a false alarm of a reading that jumps, in a hundred readings of all heads, if changes are as they were
        (:mod:`bulkedge.models.watching.alarms`).
    group : torch.distributed.ProcessGroup or "world", optional
        Processes that train the same layers on batches of their own: readings are then means over them (maxima of
        logits), by two collectives in passes that are read and none in others. All of them have to watch. Without a
        group each process reads its own batch, and nothing is exchanged.
    updates : bool
        Whether spectra of what the weights of queries and keys did since the last reading are compared with those of
        random updates (:mod:`bulkedge.models.watching.updates`).

    Returns
    -------
    Watch
        To be entered; it keeps what was read.

    Raises
    ------
    DomainError
        By the first forward pass in training mode, if its attention cannot be read, with the reason; at the end, if
        there was no such pass.

    Warns
    -----
    RegimeWarning
        If a later pass cannot be read, with the reason; the pass goes on, and its step is left out.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> with watch(model, every=1) as found:
    ...     _ = model(torch.randn(4, 8, 16))
    >>> len(found.metrics()) > 0
    True
    """
    every, rows = Integers(1, 10**9).check("every", every), Integers(1, 4096).check("rows", rows)
    return Watch(model, every, rows, Interval(1e-12, 0.5).check("rate", rate), _group_of(group), updates=updates)


def _group_of(group: Any) -> Any:
    """The processes of a group; of those of ``"world"`` all."""
    if group is None:
        return None
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise DomainError(f"group = {shown(group)}: call torch.distributed.init_process_group first, or leave it out")
    if isinstance(group, torch.distributed.ProcessGroup):
        return group
    if group != "world":
        raise DomainError(f'group = {shown(group)} is neither a torch.distributed.ProcessGroup nor "world"')
    return torch.distributed.group.WORLD


class Watch:
    """What :func:`watch` sees.

    Attributes
    ----------
    step : int
        Number of the next forward pass in training mode; a loop that accumulates gradients may set it to its own count
        of steps before each pass, and only the first pass of a step is read then.
    """

    def __init__(  # noqa: PLR0913
        self, model: nn.Module, every: int, rows: int, rate: float, group: Any, *, updates: bool
    ) -> None:
        self.step = 0
        self._group, self._shapes = group, list[Any]()
        self._model, self._every, self._rows, self._rate = model, every, rows, rate
        self._stack, self._lock = ExitStack(), RLock()
        self._counting, self._last, self._passes, self._entered = True, -1, 0, False
        self._pending: list[ReadPass] = []
        self._layers, self._heads = dict[str, int](), 0
        self._read: dict[int, Real] = {}
        self._newest: dict[str, Real] = {}
        self._log, self._failed = AlarmLog(rate), ""
        self._tracker = UpdateTracker(every, spectra=updates)
        self._spectra: dict[int, dict[str, dict[str, Real]]] = {}
        self._told: tuple[Alarm, ...] = ()

    def __repr__(self) -> str:
        return f"<Watch of {type(self._model).__name__}: {self.readings} readings in {self._passes} passes>"

    def __enter__(self) -> Self:
        if self._entered:
            raise DomainError("this watch is on already: enter it once, or make another one with be.watch(model)")
        self._stack.enter_context(during_calls(self._model, self._one_pass))
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._entered = False
        self._stack.close()
        if kind is None:
            self._check()

    @property
    def readings(self) -> int:
        """Number of steps that were read."""
        return len({*self._read, *(each.step for each in self._pending)})

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

    @contextmanager
    def _one_pass(self, called: nn.Module) -> Iterator[None]:
        """A forward pass, which is read if its step is wanted; ``called`` may be what the model was compiled to."""
        step, wanted = self._next_step() if self._model.training else (0, False)
        if not wanted:
            if self._model.training:
                self._tracker.keep(step)
            yield
            return
        one = ReadPass(self._model, step, self._rows, None if self._tracker.projections else ProjectionFinder())
        with ExitStack() as stack:
            if is_compiled(called):
                stack.enter_context(without_compiler())
            stack.enter_context(observe(one))
            yield
        one.attempt(one.flush)
        if one.error is None and not one.layers:
            one.error = DomainError(UNSEEN)
        one.attempt(lambda: self._read_updates(one))
        if self._group is not None:
            self._take_means(one)
        if one.error is None:
            with self._lock:
                self._pending.append(one)
        else:
            self._fail(step, one.error)

    def _next_step(self) -> tuple[int, bool]:
        """The step of a pass, and whether it is to be read."""
        with self._lock:
            now, self._passes = self.step, self._passes + 1
            if self._counting:
                self.step += 1
            if now % self._every or now == self._last:
                return now, False
            self._last = now
            return now, True

    def _read_updates(self, one: ReadPass) -> None:
        """Write into what was read how far the last step moved the weights."""
        with self._lock:
            self._tracker.projections |= one.projections
            updates = self._tracker.read(one.step)
            self._tracker.keep(one.step)
        row, names = list(NAMES).index("update"), iter(one.layers)
        for found in one.found:
            for layer in range(found.shape[1]):
                mine = updates.get(next(names), {})
                if "update" in mine:
                    found[row, layer] = mine["update"]
        spectra = {name: each for name, each in updates.items() if SPECTRA.keys() <= each.keys()}
        self._spectra[one.step] = {
            name: {kind: each[kind].cpu().numpy() for kind in SPECTRA} for name, each in spectra.items()
        }

    def _take_means(self, one: ReadPass) -> None:
        """Take means over the processes of the group; all of them take part, also those that could not read."""
        device, found = next(self._model.parameters()).device, one.found
        if not self._shapes:
            try:
                check_processes([] if one.error else found, self._group, device)
            except DomainError as error:
                one.error = one.error or error
                return
            self._shapes = [each.shape for each in found]
        elif one.error is None and [each.shape for each in found] != self._shapes:
            one.error = DomainError("other heads were read than in the first pass; a group has to read the same always")
        if one.error is not None:
            found = [torch.full(shape, torch.nan, device=device) for shape in self._shapes]
            for each in found:
                each[list(NAMES).index("keys")] = 0.0
        one.found = mean_of_processes(found, self._group)

    def _fail(self, step: int, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        if not self.seen:  # before a step of training is lost
            name = type(self._model).__name__
            raise DomainError(f"the attention of {name} could not be read in its first pass. {why}") from error
        if why != self._failed:
            self._failed = why
            warnings.warn(f"step {step} of the watch was not read. {why}", RegimeWarning, stacklevel=7)

    def _check(self) -> None:
        if not self.seen:
            raise DomainError(
                f"no attention of {type(self._model).__name__} was seen: it was not called in training mode; if a part "
                "of it is called by itself, watch that"
            )

    def _fetch(self) -> None:
        """Bring to the host what was read since the last time; the only place that waits for the device."""
        self._check()
        with self._lock:
            pending, self._pending = self._pending, []
            for each in pending:
                numbers = [array for found in each.found for array in found.cpu().double().numpy().swapaxes(0, 1)]
                for name in each.layers:
                    if name not in self._layers:
                        self._layers[name] = len(self._layers)
                        self._log.declared.append(name in each.causal)
                self._heads = max(self._heads, *(one.shape[1] for one in numbers))
                reading = np.full((len(NAMES), len(self._layers), self._heads), np.nan)
                for name, one in zip(each.layers, numbers, strict=True):
                    reading[:, self._layers[name], : one.shape[1]] = one
                self._add(each.step, reading)

    def _add(self, step: int, reading: Real) -> None:
        """Take in what was read, (names, layers, heads)."""
        self._read[step] = reading
        self._newest = dict(zip(NAMES, reading, strict=True))
        for name in NAMES.keys() - {"keys"}:  # rows of one key have no scores to compare
            self._newest[name][self._newest["keys"] < 2] = np.nan
        self._newest["residual"] = self._newest["entropy"] - self._newest["predicted_entropy"]
        self._log.add(step, self._newest)

    def state_dict(self) -> dict[str, Any]:
        """All readings as tensors and lists, for a checkpoint of the run.

        Returns
        -------
        dict of str to object
            For :meth:`load_state_dict`.
        """
        data = self.data
        names = [*NAMES, *(SPECTRA if self._tracker.spectra else ())]
        return {
            "names": names,
            "layers": data["module"].to_numpy().tolist(),
            "causal": list(self._log.declared),
            "steps": data["step"].to_numpy().tolist(),
            "values": torch.tensor(np.stack([data[name].to_numpy() for name in names])),
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int | None = None) -> None:
        """Go on with the readings of an earlier part of the run; alarms are found again from them.

        Parameters
        ----------
        state : mapping of str to object
            What :meth:`state_dict` returned.
        step : int, optional
            Step at which the run goes on: readings from there on, of steps that are done again, are left out. Steps
            are counted from there; after the last reading unless given.

        Raises
        ------
        DomainError
            If this watch has read something already, or the state is of another version.
        """
        if self.seen:
            raise DomainError("this watch has readings already: load those of the earlier part before the first pass")
        if not (isinstance(state, Mapping) and {"names", "values", "layers", "causal", "steps"} <= state.keys()):
            raise DomainError(f"state = {shown(state)} is not what state_dict() returned")
        if [each for each in state["names"] if each not in SPECTRA] != list(NAMES):
            raise DomainError("these readings are of another version of bulkedge: train on with the one that made them")
        values = np.asarray(state["values"], dtype=float)
        self._layers, self._heads = {name: n for n, name in enumerate(state["layers"])}, values.shape[-1]
        self._log.declared.extend(state["causal"])
        for n, each in enumerate(state["steps"]):
            if step is not None and each >= step:
                break
            self._add(each, values[: len(NAMES), n].copy())
            if len(values) > len(NAMES):
                self._spectra[each] = {
                    name: dict(zip(SPECTRA, values[len(NAMES) :, n, layer], strict=True))
                    for name, layer in self._layers.items()
                }
        if step is not None or self._read:
            self.step = max(self._read) + 1 if step is None else Integers(0, 2**62).check("step", step)

    def resume(self, path: str | Path, step: int | None = None) -> None:
        """Go on with the readings that :meth:`save` wrote.

        Parameters
        ----------
        path : str or Path
            Where they are.
        step : int, optional
            As for :meth:`load_state_dict`.
        """
        data = load_watch(path)
        names = [*NAMES, *(each for each in SPECTRA if each in data)]
        missing = [name for name in names if name not in data]
        if missing:
            raise StoreError(f"{path} is of another version of bulkedge: it has no {missing[0]}")
        self.load_state_dict(
            {
                "names": names,
                "layers": data["module"].to_numpy().tolist(),
                "causal": [bool(each) for each in data.attrs["causal"]],
                "steps": data["step"].to_numpy().tolist(),
                "values": np.stack([data[name].to_numpy() for name in names]),
            },
            step,
        )

    @property
    def data(self) -> xr.Dataset:
        """All readings, by step, layer and head; :data:`bulkedge.models.watching.measures.NAMES` says what they are."""
        self._fetch()
        steps, layers = sorted(self._read), list(self._layers)
        values = np.full((len(NAMES), len(steps), len(layers), self._heads), np.nan)
        for n, step in enumerate(steps):
            each = self._read[step]
            values[:, n, : each.shape[1], : each.shape[2]] = each
        dims = ("step", "layer", "head")
        found = {name: (dims, values[n], {"long_name": words}) for n, (name, words) in enumerate(NAMES.items())}
        data = xr.Dataset(
            found,
            coords={
                "step": steps,
                "layer": np.arange(len(layers)),
                "head": np.arange(self._heads),
                "module": ("layer", np.array(layers)),
            },
            attrs={"model": type(self._model).__name__, "every": self._every, "rate": self._rate},
        )
        if self._tracker.spectra:
            data = data.assign(self._update_spectra(steps, layers))
        return data.assign(residual=(data.entropy - data.predicted_entropy).assign_attrs(long_name=RESIDUAL))

    def _update_spectra(self, steps: list[int], layers: list[str]) -> dict[str, Any]:
        """Spectra of the updates before each reading, as variables of :attr:`data`."""
        values = np.full((len(SPECTRA), len(steps), len(layers), self._heads), np.nan)
        for n, step in enumerate(steps):
            for name, found in self._spectra.get(step, {}).items():
                for row, kind in enumerate(SPECTRA):
                    values[row, n, layers.index(name), : len(found[kind])] = found[kind]
        dims = ("step", "layer", "head")
        return {name: (dims, values[n], {"long_name": words}) for n, (name, words) in enumerate(SPECTRA.items())}

    @property
    def table(self) -> pd.DataFrame:
        """All readings, a row for each step, layer and head."""
        frame = self.data.to_dataframe().reset_index()
        return frame.dropna(subset=["keys"]).reset_index(drop=True)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Every head and layer that there is something to say of, by steps (:mod:`bulkedge.models.watching.alarms`)."""
        self._fetch()
        return self._log.alarms

    def summary(self) -> str:
        """What there is to say, in ten lines at most: one for a kind and a layer, the worst first.

        Returns
        -------
        str
            Each line with the number of heads, the first step and the last one at which it held, the numbers of the
            first head, and the remedy where a kind is first; :attr:`alarms` has every head.
        """
        self._fetch()
        return summarise(self._log.groups)

    def metrics(self) -> dict[str, float]:
        """Numbers of the last reading, as trackers of experiments want them; a call costs the same along the run.

        Returns
        -------
        dict of str to float
            ``"attention/layer_3/entropy"``, ``"attention/layer_3/beta_max"`` and so on: all of :data:`SHOWN` for each
            layer, and ``"attention/alarms"``, the number of kinds and layers with more than notes so far.
        """
        self._fetch()
        found = {}
        for layer in range(len(self._newest["beta"])):
            for name, (reading, taken) in SHOWN.items():
                values = self._newest[reading][layer]
                values = values[np.isfinite(values)]
                number = getattr(np, taken)(values) if len(values) else np.nan
                found[f"attention/layer_{layer}/{name}"] = float(number)
        found["attention/alarms"] = float(sum(each.alarm.grade != "note" for each in self._log.groups))
        return found

    def callback(self) -> Any:
        """A callback for the Trainer of transformers that adds :meth:`metrics` to what is logged.

        The watch goes by the Trainer's steps, so that passes that accumulate gradients count once. Callbacks that were
        in the list before it have read what is logged already: use :meth:`attach`, which puts it first.

        Returns
        -------
        transformers.TrainerCallback
            For ``Trainer(callbacks=[...])``.
        """
        return transformers_callback(self)

    def lightning(self) -> Any:
        """A callback for Lightning's Trainer that logs :meth:`metrics` as often as that logs.

        The watch goes by the Trainer's steps, so that batches that accumulate gradients count once. Checkpoints have
        the readings, and a run that goes on from one goes on with them.

        Returns
        -------
        LightningMetrics
            For ``Trainer(callbacks=[...])``. It has the hooks of a callback, and Lightning is not imported.
        """
        return LightningMetrics(self)

    def logger(self, send: Callable[..., Any]) -> Callable[[int], bool]:
        """A function for plain loops, to be called with the number of each step when it is done.

        Parameters
        ----------
        send : callable
            Called as ``send(metrics, step=step)`` after each new reading: ``wandb.log`` and ``mlflow.log_metrics`` as
            they are.

        Returns
        -------
        callable
            It says whether there was a new reading.
        """
        return metric_logger(self, send)

    def new_alarms(self) -> tuple[Alarm, ...]:
        """The alarms that were not here when this was asked last."""
        found = self.alarms
        new = tuple(each for each in found if each not in self._told)
        self._told = found
        return new

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
            Alarms are marked, the first of a kind in a layer.
        """
        from bulkedge import plots

        return plots.spectra.plot_watch(self.data, [each.alarm for each in self._log.groups])

    def save(self, path: str | Path) -> Path:
        """Save readings and alarms as a Zarr store, which :func:`bulkedge.models.load_watch` reads and checks.

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
        alarms, causal = to_json([asdict(each) for each in self.alarms]), [int(each) for each in self._log.declared]
        save_dataset(self.data.assign_attrs(alarms=alarms, causal=causal), path)
        return path


@takes(path=PATH)
def load_watch(path: str | Path) -> xr.Dataset:
    """The readings of a saved watch.

    Parameters
    ----------
    path : str or Path
        Where :meth:`Watch.save` put them.

    Returns
    -------
    xarray.Dataset
        The readings; the attribute ``alarms`` has the alarms as JSON.

    Raises
    ------
    StoreError
        If there is no watch, or its files are not those that were written.

    Examples
    --------
    >>> load_watch("nowhere")
    Traceback (most recent call last):
        ...
    bulkedge.support.errors.StoreError: nowhere is not what Watch.save wrote (zarr.json is missing); save it again, or
    put it back from a copy
    """
    data = load_dataset(path, "what Watch.save wrote")
    if "alarms" not in data.attrs:
        raise StoreError(f"{path} is not what Watch.save wrote: it has no alarms")
    return data
