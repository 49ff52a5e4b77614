"""One pass of a model that is watched: its layers wait until those that fit together are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bulkedge.models.hooks.attention_hooks import AttentionInputs, ForwardPass
from bulkedge.models.watching.measures import readings
from bulkedge.models.watching.updates import ProjectionFinder, Projections
from bulkedge.nn.patching.interface import unwrap
from bulkedge.support.errors import DomainError

TOGETHER = 2**26  # entries of queries and keys of which layers are read together; larger layers are read one by one


class ReadPass(ForwardPass):
    """One pass of a model that is watched: layers wait until those that fit together are read."""

    def __init__(self, model: nn.Module, step: int, rows: int, finder: ProjectionFinder | None) -> None:
        super().__init__(model)
        self._finder, self.projections = finder, dict[str, Projections]()
        self.names |= ForwardPass(unwrap(model)).names  # as they are called without what stands around the model
        self.step, self._rows = step, rows
        self.layers: list[str] = []
        self.causal: set[str] = set()  # of these, those that say that they hide later keys
        self.found: list[Tensor] = []
        self.error: Exception | None = None
        self._calls: Counter[str] = Counter()
        self._queue: list[tuple[AttentionInputs, list[int]]] = []

    def attempt(self, work: Callable[[], object]) -> None:
        """Do a part of the reading; what goes wrong is kept, because the model is not to stop for it."""
        if self.error is None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is
                self.error = error
                self._queue.clear()

    def around(self, run: Callable[[], Any], module: nn.Module, arguments: tuple[Any, ...], named: Any) -> Any:
        """Run a module, and note what it gave while it is not known which ones make queries and keys."""
        answer = super().around(run, module, arguments, named)
        if self._finder is not None:
            self._finder.note(module, answer)
        return answer

    def read(self, make: Callable[[], AttentionInputs]) -> None:
        """Make out what an attention was called with."""
        self.attempt(lambda: super(ReadPass, self).read(make))

    def attend(self, found: AttentionInputs) -> None:
        """Let a layer wait for those that fit."""
        # matrices are not to be held until layers are read
        layer = found._replace(name=found.name.replace("_orig_mod.", ""), weights=None)
        # a module that is called again in the same pass, as shared layers are, is a layer of its own
        self._calls[layer.name] += 1
        if self._calls[layer.name] > 1:
            layer = layer._replace(name=f"{layer.name}#{self._calls[layer.name]}")
        maps = None if self._finder is None else self._finder.find(layer)
        if maps is not None and self._calls[layer.name] == 1:
            self.projections[layer.name] = maps
        waiting = sum(each.entries for each, _ in self._queue)
        if self._queue and (waiting + layer.entries > TOGETHER or not layer.fits(self._queue[0][0])):
            self.flush()
        if layer.query.shape[2] == layer.key.shape[2] and getattr(layer.module, "is_causal", False) is True:
            self.causal.add(layer.name)
        self._queue.append((layer, layer.versions))

    def flush(self) -> None:
        """Read the layers that wait; their queries and keys are let go."""
        queue, self._queue = self._queue, []
        if not queue:
            return
        for layer, versions in queue:
            if versions != layer.versions:
                raise DomainError(f"queries or keys of {layer.name} were changed in place before they could be read")
        self.found.append(readings([layer for layer, _ in queue], self._rows))
        self.layers.extend(layer.name for layer, _ in queue)
