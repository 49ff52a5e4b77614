"""What it costs to watch attention in training: a step of a decoder with and without :func:`bulkedge.watch`.

A step is a forward and a backward pass of a decoder on torch's fused attention. ``watched`` is a step in which all
heads are read, ``exact`` one in which the same numbers are made of whole matrices of scores, a head and a block of rows
at a time, and ``every 50`` the mean over fifty steps of which one is watched. Medians of steps in turn, in one run.
``launches`` are operations of torch, but for views, that a watched step has more than a plain one: what costs on a GPU
where tokens are few. Multiplications and bytes are those that the readings need at least, counted by hand.
Run it as ``python -m benchmarks.watch`` on the machine that is to be measured; a GPU is used where there is one.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bulkedge as be
from benchmarks.harness import Table, command, heading, seconds, today
from bulkedge.models.hooks.attention_hooks import AttentionInputs, ForwardPass, observe
from bulkedge.models.watching import moment_entropy as blocks
from bulkedge.models.watching import visible_blocks

TITLE = "The cost of watching attention"
GPU = torch.cuda.is_available()
EVERY = 50
SIZES = {
    "gpu": {"tokens": (2048, 8192, 32768), "layers": 8, "heads": 16, "width": 2048, "repeats": 9},
    "cpu": {"tokens": (512, 2048), "layers": 2, "heads": 8, "width": 512, "repeats": 5},
}
BLOCK = 256
"""Rows of scores that the exact statistics hold at a time."""
VIEWS = {
    *("view", "_unsafe_view", "expand", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice"),
    *("detach", "alias", "unfold", "as_strided", "split", "split_with_sizes", "diagonal", "unbind", "lift_fresh"),
}
"""Operations that touch no number."""


class Launches(TorchDispatchMode):
    """Counts operations, but for views."""

    number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one, and do it."""
        del types
        self.number += function._schema.name.split("::")[1] not in VIEWS
        return function(*args, **(kwargs or {}))


def launched(step: Callable[[], Any]) -> int:
    """Operations of a step."""
    with Launches() as found:
        step()
    return found.number


def work(tokens: int, layers: int, heads: int, width: int) -> dict[str, float]:
    """Multiplications and bytes of the readings: products of queries, and passes over arrays of their size."""
    dim = width // heads
    columns = visible_blocks.BLOCKS + blocks.SINGLE + 2 * visible_blocks.NEAR
    queries, keys = layers * heads * tokens * dim, layers * heads // 4 * tokens * dim
    # moments of queries, and what right-hand sides of dim + columns make of them; moments of a quarter as many keys
    products = queries * (2 * dim + columns) + keys * (dim + visible_blocks.BLOCKS)
    # queries are read or written some eight times in single precision, and the columns of scores ten times
    return {"multiplications": products, "bytes": 4.0 * (8 * queries + 10 * queries / dim * columns + 8 * keys)}


def decoder(tokens: int, layers: int, heads: int, width: int) -> Any:
    """A decoder at random, on the device and in the type of its training."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        max_position_embeddings=tokens,
    )
    model = LlamaModel(config).train()
    return model.to("cuda", torch.bfloat16) if GPU else model


def exact(layer: AttentionInputs) -> Any:
    """Entropy, largest score and mass on the first key of all rows, from all scores: what T**2 costs."""
    key = layer.key.repeat_interleave(layer.query.shape[1] // layer.key.shape[1], dim=1)
    found = []
    with torch.no_grad():
        for start in range(0, layer.visible.rows, BLOCK):
            index = torch.arange(start, min(start + BLOCK, layer.visible.rows), device=key.device)
            bias, seen = layer.visible.bias(index)
            scores = layer.scale * (layer.query[:, :, index] @ key.mT).float()
            scores = scores if bias is None else scores + bias
            hidden = scores.masked_fill(~seen, -torch.inf)
            weights = hidden.softmax(-1)
            entropy = hidden.logsumexp(-1) - (weights * scores).sum(-1)
            found.append(torch.stack([entropy.sum(-1), hidden.amax((-2, -1)), weights[..., 0].sum(-1)]))
    return torch.stack(found)


class ExactPass(ForwardPass):
    """Reads every attention exactly."""

    def attend(self, found: AttentionInputs) -> None:
        """Read one."""
        exact(found)


def clock(step: Callable[[], Any]) -> float:
    """Seconds of one step: the device's work included, or those of the processor, whoever else is at work on it."""
    if not GPU:
        began = time.process_time()
        step()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measured(tokens: int, layers: int, heads: int, width: int, repeats: int) -> dict[str, float]:
    """Median seconds of a plain, a watched and an exactly read step; steps of the three kinds take turns."""
    model = decoder(tokens, layers, heads, width)
    inputs = torch.randint(1024, (1, tokens), device=model.device)

    def step() -> None:
        model.zero_grad()
        model(input_ids=inputs).last_hidden_state.float().square().mean().backward()

    def watched() -> None:
        with be.watch(model, every=1):
            step()

    def exactly() -> None:
        with observe(ExactPass(model)):
            step()

    kinds = {"plain": step, "watched": watched, "exact": exactly}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for repeat in range(repeats + 1):
        for name, function in kinds.items():
            took = clock(function)
            if repeat:  # the first warms up
                times[name].append(took)
    launches = launched(watched) - launched(step)
    # another plain step in each turn would tell the spread of the machine; its quartiles do
    low, _, high = statistics.quantiles(times["plain"], n=4)
    found = {name: statistics.median(each) for name, each in times.items()}
    return found | {"spread": (high - low) / 2, "launches": launches} | work(tokens, layers, heads, width)


def measurements() -> dict[str, Any]:
    """Numbers of all lengths, and where they come from."""
    blocks.entropy_table()  # it is made once
    sizes: dict[str, Any] = dict(SIZES["gpu" if GPU else "cpu"])
    lengths = sizes.pop("tokens")
    device = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
    shape = f"{sizes['layers']} layers of {sizes['heads']} heads, width {sizes['width']}"
    about = f"one {device}, torch {torch.__version__}, {shape}"
    return {
        "measured": today(),
        "about": about,
        "lengths": {str(tokens): measured(tokens, **sizes) for tokens in lengths},
    }


def tables(numbers: dict[str, Any] | None = None) -> list[Table]:
    """A row for each length."""
    numbers = measurements() if numbers is None else numbers
    note = "One sequence a step. Parts are of a plain step."
    headings = [
        "tokens",
        "plain step",
        "half its quartiles' distance",
        "watched adds",
        "exact adds",
        f"every {EVERY} adds",
        "launches",
        "multiplications",
        "bytes",
    ]
    result = Table(TITLE, headings, note)
    for tokens, each in numbers["lengths"].items():
        plain = each["plain"]
        parts = [each[name] / plain - 1 for name in ("watched", "exact")]
        shown = [f"{part:+.1%}" for part in (each["spread"] / plain, *parts)]
        sizes = [f"{each[name]:.2g}" for name in ("multiplications", "bytes")]
        result.add(tokens, seconds(plain), *shown, f"{parts[0] / EVERY:+.2%}", str(int(each["launches"])), *sizes)
    return [result]


def gpu_page(numbers: dict[str, Any]) -> str:
    """Markdown of what was measured on a GPU."""
    return "\n\n".join([heading(f"{TITLE}, on a GPU", __doc__ or "", numbers), tables(numbers)[0].markdown()])


def main() -> None:
    command(argparse.ArgumentParser(description=TITLE), lambda _: measurements(), gpu_page)


if __name__ == "__main__":
    main()
