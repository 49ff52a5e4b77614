"""What the channel of heads costs beside their attention: moments, spread and popularity from queries and keys.

The floor is the attention forward of the same heads, torch's `scaled_dot_product_attention`, in the same run. What a
scan of a model asks of each layer is the channel, its beta and its popularity. On a GPU, where there is one, times
include the wait for the device, after calls that load its libraries. ``python -m benchmarks channel`` writes the page
of the cores that it runs on. That of a GPU is written from numbers that are kept beside it::

    python -m benchmarks.channel --json docs/benchmarks/channel_gpu.json
    python -m benchmarks.channel --read docs/benchmarks/channel_gpu.json --page docs/benchmarks/channel_gpu.md
"""

from __future__ import annotations

import argparse
import os
import platform
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import bulkedge as be
from benchmarks.harness import Table, best, command, page, record, seconds
from bulkedge.heads import softmax
from bulkedge.heads.channel.moments import moments

TITLE = "Benchmarks: the channel of a head"
HEADS, TOKENS, DIM = 32, 4096, 64
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
GOALS = {"from_qk": "5 ms", "scan": ""} if GPU else {"from_qk": "", "scan": "10 %"}


def inputs(device: str = DEVICE) -> tuple[Any, Any, Any]:
    """Queries, keys and values of a layer, in single precision."""
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, HEADS, TOKENS, DIM, generator=made).to(device) for _ in range(3))


def scanned(q: Any, k: Any) -> tuple[Any, Any]:
    """What a scan asks of a layer."""
    head = be.heads.Channel.from_qk(q, k)
    return head.beta, head.popularity(k)


def finished(job: Callable[[], Any]) -> Callable[[], None]:
    """The job, and the wait until the device has done it."""

    def run() -> None:
        job()
        if GPU:
            torch.cuda.synchronize()

    return run


def waits(job: Callable[[], Any]) -> str:
    """How often the host waits for a GPU within a job, by torch's own count; nothing without one."""
    if not GPU:
        return ""
    job()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            job()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return str(sum("synchroniz" in str(each.message) for each in caught))


def channel() -> Table:
    """Channel, beta and popularity against the attention forward."""
    q, k, v = inputs()
    known = be.heads.Channel.from_qk(q, k)
    floor = best(finished(lambda: scaled_dot_product_attention(q, k, v)), least=3)
    place = torch.cuda.get_device_name() if GPU else "the CPU"
    table = Table(
        f"{HEADS} heads of {TOKENS} tokens and dimension {DIM}, single precision, on {place}",
        ["what", "time", "share of the forward", "goal", "waits for the device"],
    )
    table.add("attention forward (torch)", seconds(floor), "", "", "")
    jobs: list[tuple[str, Callable[[], Any], str]] = [
        ("moments of queries and keys, torch", lambda: (moments(q), moments(k)), ""),
        ("Channel.from_qk, torch", lambda: be.heads.Channel.from_qk(q, k), GOALS["from_qk"]),
        ("popularity, torch", lambda: known.popularity(k), ""),
        ("from_qk, beta and popularity, torch", lambda: scanned(q, k), GOALS["scan"]),
        ("from_qk and couplings, torch", lambda: be.heads.Channel.from_qk(q, k).couplings, ""),
    ]
    if not GPU:
        narrow = [each.numpy() for each in (q, k)]
        jobs.append(("from_qk, beta and popularity, NumPy", lambda: scanned(*narrow), GOALS["scan"]))
    for name, job, goal in jobs:
        took = best(finished(job), least=3)
        table.add(name, seconds(took), f"{100 * took / floor:.1f} %", goal, waits(job))
    return table


def rows_of_heads() -> Table:
    """Entropy and participation: with a new number of tokens, and with a known one."""
    q, k, _ = inputs()
    known = be.heads.Channel.from_qk(q, k)

    def anew() -> None:
        softmax.forget()
        known.rows(TOKENS)

    table = Table(f"Entropy and participation of {HEADS} heads", ["what", "time", "goal"])
    table.add("first call for a number of tokens", seconds(best(anew, least=5)), "50 ms")
    table.add("further calls", seconds(best(lambda: known.rows(TOKENS))), "")
    return table


def tables() -> list[Table]:
    """All of it."""
    return [channel(), rows_of_heads()]


def main() -> None:
    about = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    command(parser, lambda _: record(tables(), about), gpu_page)


def gpu_page(numbers: dict[str, Any]) -> str:
    """Markdown of what was measured on a GPU."""
    return page(f"{TITLE}, on a GPU", __doc__ or "", numbers)


if __name__ == "__main__":
    main()
