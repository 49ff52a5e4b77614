"""``be.preflight`` against random instances of the models themselves, layer by layer.

Every row is a configuration of a family, made by transformers' own class, with 256 uniform random tokens (ViT: 256
patches of white noise, and one token more). Instances differ in weights and tokens. The truth is their mean, and its
standard error is in brackets where it is over a quarter of the goal. Deviations are the largest over all layers, so
they contain the noise of the instances. Goals: beta within 5 %, entropy within 0.03 nats, cosine within 0.03, power
within 5 %, gradient norms within 12 %. T5's weights have no range but a factor.

``python -m benchmarks.preflight --page docs/benchmarks/preflight.md`` adds what is missing to ``preflight.json`` row
by row, so that it may be stopped at any time, and writes the page. ``--instances 0`` adds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Table, page, today
from bulkedge.support.files import replace_file

TITLE = "Benchmarks: preflight"
STORE = Path(__file__).parent.parent / "docs" / "benchmarks" / "preflight.json"
FAMILIES = ("llama", "qwen2", "mistral", "qwen3", "olmo2", "gemma2", "gemma3", "gpt2", "bert", "vit", "t5")
SIGMAS, DEPTHS, TOKENS, WIDTH, HEADS = (0.02, 0.08), (8, 24), 256, 256, 4
MEASURES = ("beta", "entropy", "largest", "gap", "rank", "cosine", "token_rank", "power", "gradient")
GOALS = {"beta": 0.05, "entropy": 0.03, "cosine": 0.03, "power": 0.05, "gradient": 0.12}
ABSOLUTE = ("entropy", "cosine", "gap")


def configuration(family: str, sigma: float, depth: int) -> Any:
    """A configuration of that family: width 256, four heads, windows of 64 where it has some."""
    import transformers as hf

    base = {
        "hidden_size": WIDTH, "num_hidden_layers": depth, "num_attention_heads": HEADS, "initializer_range": sigma,
    }  # fmt: skip
    encoder = base | {"intermediate_size": 4 * WIDTH}
    decoder = base | {
        "intermediate_size": 3 * WIDTH, "vocab_size": 1000, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None,
    }  # fmt: skip
    shared = decoder | {"num_key_value_heads": 2}
    heads = shared | {"head_dim": WIDTH // HEADS}
    gemma = heads | {"query_pre_attn_scalar": WIDTH // HEADS, "sliding_window": 64}
    made = {
        "llama": lambda: hf.LlamaConfig(**shared),
        "qwen2": lambda: hf.Qwen2Config(**shared),
        "mistral": lambda: hf.MistralConfig(**heads, sliding_window=64),
        "qwen3": lambda: hf.Qwen3Config(**heads),
        "olmo2": lambda: hf.Olmo2Config(**decoder),
        "gemma2": lambda: hf.Gemma2Config(**gemma),
        "gemma3": lambda: hf.Gemma3TextConfig(**gemma),
        "gpt2": lambda: hf.GPT2Config(
            n_embd=WIDTH, n_layer=depth, n_head=HEADS, vocab_size=1000, initializer_range=sigma, bos_token_id=None,
            eos_token_id=None,
        ),
        "bert": lambda: hf.BertConfig(**encoder, vocab_size=1000),
        "vit": lambda: hf.ViTConfig(**encoder, image_size=256, patch_size=16),
        "t5": lambda: hf.T5Config(
            d_model=WIDTH, num_layers=depth, num_heads=HEADS, d_kv=WIDTH // HEADS, d_ff=4 * WIDTH, vocab_size=1000,
            initializer_factor=factor(sigma),
        ),
    }  # fmt: skip
    return made[family]()


def factor(sigma: float) -> float:
    """T5's factor in place of a range: its default, and half of it, because twice of it freezes all heads."""
    return 1.0 if sigma == SIGMAS[0] else 0.5


def instances(family: str, sigma: float, depth: int, count: int) -> dict[str, Any]:
    """Mean and standard error over random instances, for every layer."""
    from bulkedge.models.initialisation.blueprint import read_blueprint
    from bulkedge.models.initialisation.measuring import measure

    config = configuration(family, sigma, depth)
    readout = getattr(read_blueprint(config), "readout", 0.02)
    runs = [measure(config, TOKENS, seed, readout) for seed in range(count)]
    row: dict[str, Any] = {"family": family, "sigma": sigma, "depth": depth, "instances": count, "measured": today()}
    for name in MEASURES:
        values = np.array([each[name] for each in runs])
        row[name] = values.mean(0).tolist()
        row[f"{name}_error"] = (values.std(0, ddof=1) / np.sqrt(count)).tolist()
    return row


def deviations(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Largest deviation of the prediction over the layers, and the standard error of the truth there."""
    from bulkedge.models.initialisation.blueprint import read_blueprint
    from bulkedge.models.initialisation.recursion import recursion

    plan: Any = read_blueprint(configuration(row["family"], row["sigma"], row["depth"]))
    predicted = recursion(plan, TOKENS + (row["family"] == "vit"))
    found = {}
    for name in MEASURES:
        truth, error = np.array(row[name]), np.array(row[f"{name}_error"])
        scale = 1.0 if name in ABSOLUTE else truth
        off = np.abs((predicted[name] - truth) / scale)
        at = int(off.argmax())
        found[name] = (float(off[at]), float((error / scale)[at]))
    return found


def tables(store: dict[str, Any]) -> list[Table]:
    """One table a depth, and how many rows reach each goal."""
    found = []
    for depth in DEPTHS:
        rows = [each for each in store["rows"] if each["depth"] == depth]
        if not rows:
            continue
        table = Table(
            f"{depth} layers", ["family", "range", "instances", "beta", "entropy", "cosine", "power", "gradient"]
        )
        reached = dict.fromkeys(GOALS, 0)
        for row in rows:
            off = deviations(row)
            for name, goal in GOALS.items():
                reached[name] += off[name][0] <= goal
            size = f"factor {factor(row['sigma'])}" if row["family"] == "t5" else row["sigma"]
            table.add(row["family"], str(size), row["instances"], *(_cell(name, *off[name]) for name in GOALS))
        table.note = "Within the goal: " + ", ".join(f"{name} {n} of {len(rows)}" for name, n in reached.items()) + "."
        found.append(table)
    return found


def _cell(name: str, off: float, error: float) -> str:
    text = (lambda x: f"{x:.3f}") if name in ABSOLUTE else (lambda x: f"{100 * x:.1f} %")
    noise = f" ({text(error)})" if error > GOALS[name] / 4 else ""
    return ("**" + text(off) + "**" if off > GOALS[name] else text(off)) + noise


def written(store: dict[str, Any]) -> str:
    """The page."""
    return page(TITLE, __doc__ or "", store)


def main() -> None:
    """Add rows that are missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--depths", type=int, nargs="*", default=list(DEPTHS))
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args()
    about = f"{os.cpu_count()} cores, PyTorch on a processor"
    store = {"measured": today(), "about": about, "rows": []}
    if chosen.store.exists():
        store = json.loads(chosen.store.read_text())
    known = {(each["family"], each["sigma"], each["depth"]) for each in store["rows"]}
    for depth in chosen.depths:
        for sigma in SIGMAS:
            for family in FAMILIES:
                if chosen.instances and (family, sigma, depth) not in known:
                    store["rows"].append(instances(family, sigma, depth, chosen.instances))
                    replace_file(chosen.store, json.dumps(store) + "\n")
                    print(family, sigma, depth, flush=True)
    if chosen.page:
        store["tables"] = [vars(each) for each in tables(store)]
        replace_file(chosen.store, json.dumps(store) + "\n")
        replace_file(chosen.page, written(store))


if __name__ == "__main__":
    main()
