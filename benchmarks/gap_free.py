"""Attention without its gap against plain fused attention: forward, and forward with backward.

Both run in turns in the same process, each several times in a row; a ratio is the median over rounds, with the
quartiles of the rounds. Bfloat16 on a GPU with contexts from 1024 to 32768, single precision and shorter ones on a CPU.
The goal is at most 3 % over plain attention.

Beside the kernel of plain attention, values, output and their gradients have to be read and written again. The column
"floor" is the ratio if that ran at the speed of memory, which is that of an addition of tensors of the same size.

Needs torch and nothing that bulkedge needs; the second line writes the page of a measurement made elsewhere::

    python -m benchmarks.gap_free --json docs/benchmarks/gap_free.json
    python -m benchmarks.gap_free --read docs/benchmarks/gap_free.json --page docs/benchmarks/gap_free.md
"""

from __future__ import annotations

import argparse
import importlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.harness import Table, command, heading, seconds, today

TITLE = "Benchmarks: attention without its gap"
GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
TOKENS = 32768 if GPU else 4096
"""Tokens in a batch; a longer context has fewer rows, so that every size is the same work for what is linear in it."""
CONTEXTS = [2**k for k in range(10, 16)] if GPU else [1024, 4096]
HEADS, DIM = (16, 64) if GPU else (4, 64)
ROUNDS, LEAST_SECONDS, LEAST_CALLS = (10, 0.01, 5) if GPU else (5, 0.0, 1)
CASES = ("full", "causal", "padding", "causal, shared heads")
GOAL = 1.03


def gap_free() -> Callable[..., Any]:
    """The function, without what the package imports: a bare GPU machine has not all of it."""
    source = Path(__file__).parent.parent / "src"
    for name in ("bulkedge", "bulkedge.nn"):
        package = ModuleType(name)
        package.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules.setdefault(name, package)
    return importlib.import_module("bulkedge.nn.attention").gap_free_attention  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Measurement:
    """One case at one size."""

    case: str
    tokens: int
    batch: int
    what: str
    implementation: str
    plain_seconds: float = float("nan")
    ratio: float = float("nan")
    lower: float = float("nan")
    upper: float = float("nan")
    floor: float = float("nan")
    problem: str = ""


def inputs(case: str, tokens: int) -> tuple[list[Any], dict[str, Any]]:
    """Queries, keys, values, and the options of the call."""
    batch, shared = max(1, TOKENS // tokens), "shared" in case
    rng = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(batch, heads, tokens, DIM) for heads in (HEADS, *2 * [HEADS // 4 if shared else HEADS])]
    made = [torch.randn(each, generator=rng, device=DEVICE).to(DTYPE).requires_grad_() for each in shapes]
    options: dict[str, Any] = {"is_causal": "causal" in case, "enable_gqa": shared}
    if case == "padding":
        lengths = torch.linspace(tokens // 2, tokens, batch, device=DEVICE).long()
        options["attn_mask"] = (torch.arange(tokens, device=DEVICE) < lengths[:, None])[:, None, None, :]
    return made, options


def largest_error(case: str) -> float:
    """Against the explicit matrix in double precision, at a length that is no multiple of anything."""
    made, options = inputs(case, 333)
    q, k, v = (each.detach()[:1].double() for each in made)
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    seen = torch.ones(333, 333, dtype=torch.bool, device=DEVICE)
    seen = seen.tril() if options["is_causal"] else seen & options.get("attn_mask", seen)[:1]
    attention = (q @ k.mT / DIM**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    explicit = (attention - seen / seen.sum(-1, keepdim=True)) @ v
    return float((gap_free()(*made, **options)[:1].detach().double() - explicit).abs().max())


def timed(function: Callable[[], Any], repeats: int) -> float:
    """Seconds of one call, from several in a row."""
    if GPU:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            function()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / repeats
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def call(attention: Callable[..., Any], made: list[Any], options: dict[str, Any], what: str) -> Callable[[], Any]:
    """The work to be timed."""

    def forward() -> Any:
        with torch.no_grad():
            return attention(*made, **options)

    def both() -> Any:
        output = attention(*made, **options)
        return torch.autograd.grad(output, made, torch.ones_like(output))

    return forward if what == "forward" else both


def floor_seconds(made: list[Any], options: dict[str, Any], what: str) -> float:
    """What the least traffic takes: values or their gradient in and out; for a running mean also the output."""
    query, _, value = (each.numel() for each in made)
    forward, backward = (value + 2 * query, query + 2 * value) if options["is_causal"] else (2 * value, 2 * value)
    numbers = forward if what == "forward" else forward + backward
    one, other = (torch.randn(made[0].shape, device=DEVICE).to(DTYPE) for _ in range(2))
    addition = statistics.median(timed(lambda: torch.add(one, other, out=other), 20) for _ in range(5))
    return numbers / (3 * one.numel()) * addition


def measure(case: str, tokens: int, what: str, implementation: str, attention: Callable[..., Any]) -> Measurement:
    """Plain and gap-free attention in turns; a kernel that fails is reported as such."""
    made, options = inputs(case, tokens)
    about = (case, tokens, max(1, TOKENS // tokens), what, implementation)
    try:
        plain, other = (call(each, made, options, what) for each in (scaled_dot_product_attention, attention))
        for each in (plain, other, plain, other):
            each()
        repeats = max(LEAST_CALLS, round(LEAST_SECONDS / max(timed(plain, 1), 1e-6)))
        rounds = [(timed(plain, repeats), timed(other, repeats)) for _ in range(ROUNDS)]
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        return Measurement(*about, problem=str(error).splitlines()[0][:200])
    ratios, seconds_of_plain = [theirs / ours for ours, theirs in rounds], statistics.median(ours for ours, _ in rounds)
    lower, _, upper = statistics.quantiles(ratios, n=4)
    floor = 1 + floor_seconds(made, options, what) / seconds_of_plain
    return Measurement(*about, seconds_of_plain, statistics.median(ratios), lower, upper, floor)


def measurements(*, compiled: bool) -> list[Measurement]:
    """Every case at every size."""
    implementations = {"eager": gap_free()}
    if compiled:
        implementations["compiled"] = torch.compile(gap_free(), dynamic=False)
    return [
        measure(case, tokens, what, name, attention)
        for name, attention in implementations.items()
        for case in CASES
        for what in ("forward", "forward and backward")
        for tokens in CONTEXTS
    ]


def table(found: list[Measurement], name: str) -> Table:
    """Ratios of one implementation."""
    over = sum(not each.ratio <= GOAL for each in found)
    result = Table(
        name.capitalize(),
        ["case", "what", "context", "plain", "gap-free / plain", "quartiles", "floor"],
        f"{len(found) - over} of {len(found)} at most {GOAL}.",
    )
    for each in found:
        ratio = each.problem or f"{each.ratio:.3f}"
        spread, floor = f"{each.lower:.3f} to {each.upper:.3f}", f"{each.floor:.3f}"
        result.add(each.case, each.what, str(each.tokens), seconds(each.plain_seconds), ratio, spread, floor)
    return result


def tables(found: list[Measurement] | None = None) -> list[Table]:
    """One for each implementation; unless given, without compilation, for which nobody waits with pleasure."""
    found = measurements(compiled=False) if found is None else found
    names = dict.fromkeys(each.implementation for each in found)
    return [table([each for each in found if each.implementation == name], name) for name in names]


def written(found: list[Measurement]) -> dict[str, Any]:
    """Numbers and where they come from, for JSON."""
    device = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
    about = f"one {device}, torch {torch.__version__}, {DTYPE}, {HEADS} heads of {DIM}, {TOKENS} tokens in a batch"
    gap_free()
    # a kernel that failed has no numbers, and JSON no nan
    numbers = [{key: each for key, each in asdict(one).items() if each == each} for one in found]  # noqa: PLR0124
    errors = {case: largest_error(case) for case in CASES}
    return {"measured": today(), "about": about, "errors": errors, "measurements": numbers}


def page(numbers: dict[str, Any]) -> str:
    """Markdown of what was written."""
    errors = ", ".join(f"{error:.2g} ({case})" for case, error in numbers["errors"].items())
    exact = f"Largest errors against explicit matrices in double precision: {errors}."
    found = [Measurement(**each) for each in numbers["measurements"]]
    return "\n\n".join([heading(TITLE, __doc__ or "", numbers), exact, *(each.markdown() for each in tables(found))])


def main() -> None:
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--compiled", action="store_true", help="measure it under torch.compile too")
    command(parser, lambda chosen: written(measurements(compiled=chosen.compiled)), page)


if __name__ == "__main__":
    main()
