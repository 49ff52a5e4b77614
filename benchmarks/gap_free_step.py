"""A training step and a decoded token with and without the gap: what a user of gap-free attention waits for.

Models of transformers with fresh weights, through ``be.nn.remove_gap``: Llama with as many keys as queries and with
shared ones, Qwen3, Mistral with a window, Gemma 2 with capped scores, ViT-B, BERT and GPT-2, with the cache that a
model has by default and without. A step is a forward and a backward pass and a fused AdamW, under bfloat16 autocast on
a GPU, with the same number of tokens whatever the context; decoding is a pass of one token behind a cache.

The model and its patched copy take turns in one process. A ratio is the median over rounds, with quartiles; on a
processor ``fastest`` is that of the fastest steps, and times are those of the processor, whoever else runs. Goals: 1.03
compiled, 1.08 eager, 1.05 for a decoded token, 1.02 for the peak of memory; on a processor 1.05. Capped scores form
matrices, plain or not.

Needs torch, transformers and, for compiled steps, a C++ compiler. Rows are written one by one and those that are there
are left out (``--again`` measures them again), so a session may end anywhere::

    python -m benchmarks.gap_free_step --json docs/benchmarks/gap_free_step.json
    python -m benchmarks.gap_free_step --read docs/benchmarks/gap_free_step.json --page docs/benchmarks/gap_free_step.md
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

import bulkedge as be
from benchmarks.harness import Table, command, heading, seconds, today, unbroken
from bulkedge.nn import fused
from bulkedge.support.files import replace_file

TITLE = "Benchmarks: a training step without the gap"
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TOKENS = 16384 if GPU else 512
"""Tokens of a step, in as many sequences as the context allows."""
ROUNDS, STEPS = (15, 5) if GPU else (31, 1)
clock = time.perf_counter if GPU else time.process_time  # of a processor that others use, too
GOALS = (
    {"eager": 1.08, "compiled": 1.03, "decoding": 1.05}
    if GPU
    else dict.fromkeys(("eager", "compiled", "decoding"), 1.05)
)
MEMORY_GOAL = 1.02
SIZES: dict[str, Any] = (
    {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    if GPU
    else {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 4}
)
SHARED = 4 if GPU else 2  # heads of keys, where those of queries share them
WORDS = 32000 if GPU else 1000


@dataclass(frozen=True)
class Model:
    """A model of transformers, by the names of its configuration and class, and the contexts it is trained at."""

    config: str
    kind: str
    options: dict[str, Any]
    contexts: tuple[int, ...]

    def build(self, context: int) -> Any:
        """With fresh weights, in training, without dropout."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options)
        if hasattr(config, "max_position_embeddings"):
            config.max_position_embeddings = max(context + 128, 512)
        if self.config == "Gemma2Config":  # the fused kernels know no cap
            config._attn_implementation = "eager"
        return getattr(transformers, self.kind)(config).to(DEVICE).train()

    def inputs(self, context: int) -> dict[str, Any]:
        """A batch, and what is to be learnt of it."""
        batch = max(1, TOKENS // context)
        if self.config == "ViTConfig":
            size = self.options["image_size"]
            pixels = torch.randn(batch, 3, size, size, device=DEVICE)
            return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device=DEVICE)}
        ids = torch.randint(WORDS, (batch, context), device=DEVICE)
        return {"input_ids": ids, "labels": ids}


LONG, SHORT = ((1024, 2048, 8192), (512,)) if GPU else ((256, 512), (128,))
TEXT = SIZES | {"vocab_size": WORDS, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_positions": max(LONG) + 128, "vocab_size": WORDS}
GPT2 |= {} if GPU else {"n_layer": 2, "n_head": 4, "n_embd": 256}
BASE = SIZES | ({"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12} if GPU else {}) | NO_DROPOUT
MODELS = {
    "Llama": Model(
        "LlamaConfig", "LlamaForCausalLM", TEXT | {"num_key_value_heads": SIZES["num_attention_heads"]}, LONG
    ),
    "Llama, shared keys": Model("LlamaConfig", "LlamaForCausalLM", TEXT | {"num_key_value_heads": SHARED}, LONG),
    "Qwen3": Model("Qwen3Config", "Qwen3ForCausalLM", TEXT | {"num_key_value_heads": SHARED, "head_dim": 64}, LONG[:1]),
    "Mistral, window": Model(
        "MistralConfig",
        "MistralForCausalLM",
        TEXT | {"num_key_value_heads": SHARED, "sliding_window": 1024 if GPU else 64},
        (4096,) if GPU else LONG,
    ),
    "Gemma 2, capped": Model(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        TEXT | {"num_key_value_heads": SHARED, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 512},
        LONG[:1],
    ),
    "ViT-B": Model("ViTConfig", "ViTForImageClassification", BASE | {"image_size": 224, "patch_size": 16}, (197,)),
    "BERT": Model("BertConfig", "BertForMaskedLM", BASE | {"vocab_size": WORDS}, SHORT),
    "GPT-2": Model("GPT2Config", "GPT2LMHeadModel", GPT2, LONG[:1]),
    "GPT-2 without a cache": Model("GPT2Config", "GPT2LMHeadModel", GPT2 | {"use_cache": False}, LONG[:1]),
}


@dataclass(frozen=True)
class Measurement:
    """Plain and gap-free steps of one model at one context."""

    machine: str
    model: str
    context: int
    mode: str
    plain_seconds: float
    ratio: float
    lower: float
    upper: float
    fastest: float
    plain_host: float
    host: float
    plain_gib: float
    memory_ratio: float
    day: str

    @property
    def what(self) -> tuple[str, ...]:
        """That it is a measurement of."""
        return self.machine, self.model, str(self.context), self.mode


def machine() -> str:
    """What is measured on."""
    device = f"one {torch.cuda.get_device_name()}" if GPU else f"one core, {platform.machine()}"
    means = "Triton" if GPU and fused.TRITON else "torch"
    return f"{device}, torch {torch.__version__}, means by {means}"


def step_of(model: Model, context: int, mode: str, *, removed: bool) -> Callable[[], Any]:
    """A step of training, or of decoding."""
    network, inputs = model.build(context), model.inputs(context)
    if removed:
        be.nn.remove_gap(network)
    mixed = torch.autocast(DEVICE, torch.bfloat16) if GPU else nullcontext()
    if mode == "decoding":
        return decoding(network.eval(), inputs["input_ids"], mixed)
    optimiser = torch.optim.AdamW(network.parameters(), fused=True)
    with torch.no_grad():  # a patched model looks at its first pass, once
        network(**{name: each[:1] for name, each in inputs.items()})
    forward = torch.compile(network) if mode == "compiled" else network

    def step() -> None:
        optimiser.zero_grad()
        with mixed:
            loss = forward(**inputs).loss
        loss.backward()
        optimiser.step()

    return step


def decoding(network: Any, ids: Any, mixed: Any) -> Callable[[], Any]:
    """A token behind a cache of the whole context and of the tokens before."""
    with torch.no_grad(), mixed:
        cache = network(input_ids=ids[:1], use_cache=True).past_key_values

    def step() -> None:
        with torch.no_grad(), mixed:
            network(input_ids=ids[:1, :1], past_key_values=cache, use_cache=True)

    return step


def timed(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Seconds of a step, and until its last launch has returned."""
    wait()
    start = clock()
    step()
    host = clock() - start
    wait()
    if steps == 1:
        return clock() - start, host
    start = clock()
    for _ in range(steps):
        step()
    wait()
    return (clock() - start) / steps, host


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def peak(step: Callable[[], Any]) -> float:
    """GiB that a step has at most; nothing on a CPU, where torch does not count."""
    if not GPU:
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    step()
    wait()
    return torch.cuda.max_memory_allocated() / 2**30


def measure(name: str, context: int, mode: str) -> Measurement:
    """Both kinds of steps in turns; peaks with one of the two models on the device."""
    made, peaks = [], []
    torch._dynamo.reset()
    for removed in (False, True):
        gc.collect()  # what is freed later would be missing from the peak
        before = torch.cuda.memory_allocated() / 2**30 if GPU else 0.0
        step = step_of(MODELS[name], context, mode, removed=removed)
        for _ in range(3):
            step()
        peaks.append(peak(step) - before)
        made.append(step)
    # in turns, and each as often first: what ran before fills the caches
    turns = [[(k, timed(made[k], STEPS)) for k in ((0, 1) if turn % 2 else (1, 0))] for turn in range(ROUNDS)]
    rounds = [dict(turn) for turn in turns]
    ratios = [each[1][0] / each[0][0] for each in rounds]
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    plain, plain_host = (statistics.median(each[0][i] for each in rounds) for i in range(2))
    host = statistics.median(each[1][1] for each in rounds)
    fastest = min(each[1][0] for each in rounds) / min(each[0][0] for each in rounds)
    times = {"plain_seconds": plain, "ratio": middle, "lower": lower, "upper": upper, "fastest": fastest}
    hosts = {"plain_host": plain_host, "host": host}
    memory = {"plain_gib": peaks[0], "memory_ratio": peaks[1] / peaks[0]}
    return Measurement(machine(), name, context, mode, **times, **hosts, **memory, day=today())


def wanted(modes: list[str], models: list[str], contexts: list[int] | None) -> Iterator[tuple[str, int, str]]:
    """Every model at every context; what has no cache decodes nothing."""
    for mode, name in product(modes, models):
        if mode != "decoding" or MODELS[name].kind.endswith("CausalLM"):
            yield from ((name, context, mode) for context in contexts or MODELS[name].contexts)


def tables(found: list[Measurement]) -> list[Table]:
    """One for each machine and mode."""
    headings = [
        "model",
        "context",
        "plain",
        "gap-free / plain",
        "quartiles",
        "fastest",
        "host, plain",
        "host",
        "plain peak",
    ]
    headings += ["memory, gap-free / plain", "measured"]
    result = []
    for where, mode in dict.fromkeys((each.machine, each.mode) for each in found):
        rows = [each for each in found if (each.machine, each.mode) == (where, mode)]
        table = Table(f"{mode.capitalize()}, {where}", headings)
        for each in rows:
            spread = f"{each.lower:.3f} to {each.upper:.3f}"
            counted = each.plain_gib == each.plain_gib
            memory = (f"{each.plain_gib:.2f} GiB", f"{each.memory_ratio:.3f}") if counted else ("", "")
            times = [seconds(value) for value in (each.plain_host, each.host)]
            table.add(
                *(each.model, str(each.context), seconds(each.plain_seconds), f"{each.ratio:.3f}", spread),
                *(f"{each.fastest:.3f}", *times, *memory, unbroken(each.day)),
            )
        result.append(table)
    return result


def written(found: list[Measurement]) -> dict[str, Any]:
    """Numbers and where they come from, for JSON."""
    about = "; ".join(dict.fromkeys(each.machine for each in found))
    rows = [{key: each for key, each in asdict(one).items() if each == each} for one in found]  # noqa: PLR0124 - not nan
    return {"measured": today(), "about": about, "measurements": rows}


def read(numbers: dict[str, Any]) -> list[Measurement]:
    """What was measured before."""
    nothing = {"plain_gib": float("nan"), "memory_ratio": float("nan")}
    return [Measurement(**nothing | each) for each in numbers["measurements"]]


def page(numbers: dict[str, Any]) -> str:
    """Markdown of what was written."""
    found = read(numbers)
    return "\n\n".join([heading(TITLE, __doc__ or "", numbers), *(each.markdown() for each in tables(found))])


def main() -> None:
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--modes", nargs="*", choices=tuple(GOALS), default=list(GOALS))
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=list(MODELS), help="all unless named")
    parser.add_argument("--contexts", nargs="*", type=int, help="tokens of a sequence, instead of each model's own")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")

    def measured(chosen: argparse.Namespace) -> dict[str, Any]:
        path: Path | None = chosen.json
        before = read(json.loads(path.read_text())) if path and path.exists() else []
        rows = {each.what: each for each in before}
        for name, context, mode in wanted(chosen.modes, chosen.models, chosen.contexts):
            if (machine(), name, str(context), mode) in rows and not chosen.again:
                continue
            found = measure(name, context, mode)
            print(found, flush=True)
            rows[found.what] = found
            if path:
                replace_file(path, json.dumps(written([*rows.values()]), indent=1) + "\n")
        return written([*rows.values()])

    command(parser, measured, page)


if __name__ == "__main__":
    main()
