"""What every head of MiniLM is worth, and which numbers of a scan knew it: on pages that no score was computed on.

The cost of heads is how far the embeddings of sentences move without them: half the mean squared change of the output
as a share of its variance over tokens, and one minus the cosine of the mean output with that of the whole model::

    python -m benchmarks.encoder_heads encoder.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bulkedge as be
from bulkedge.models import load_model, sample_text
from bulkedge.models.scanning.importance import _divergence
from bulkedge.support.files import replace_file

TOKENS, PASSAGES, LETTERS, RANDOM = 128, 6, 900, 50
FRACTIONS = (0.05, 0.1, 0.2)
SCORES = {"sink_mass": -1, "entropy": 1, "output": 1, "variation": 1, "importance": 1}
"""Numbers of the scan, and which end of them goes first."""


def passages(book: str) -> list[str]:
    """Pages spread over a book."""
    text = sample_text(book)
    starts = np.linspace(0, len(text) - LETTERS, PASSAGES).astype(int)
    return [text[start : start + LETTERS] for start in starts]


def main() -> None:
    target = Path(sys.argv[1])
    model, tokenizer, _ = load_model("minilm")
    books = list(be.models.TEXTS)[:2]
    found = be.scan(
        model, passages(books[0]), tokenizer=tokenizer, tokens=TOKENS, draws=0, probe=False, importance=True
    )
    gates, table = found.material.gates, found.table
    inputs = [
        {"input_ids": torch.as_tensor([tokenizer(text, truncation=True, max_length=TOKENS)["input_ids"]])}
        for text in passages(books[1])
    ]

    @torch.no_grad()
    def outputs(off: Any) -> list[torch.Tensor]:
        with gates.on(found.material.gates_without(off)):
            return [model(**each).last_hidden_state for each in inputs]

    whole = outputs([])

    def cost(off: Any) -> list[list[float]]:
        """Share of variance and one minus cosine, passage by passage."""
        pairs = list(zip(whole, outputs(off), strict=True))
        moved = [float(_divergence(a, b, is_logits=False).mean()) for a, b in pairs]
        turned = [1 - float(torch.cosine_similarity(a.mean(1), b.mean(1))) for a, b in pairs]
        return [moved, turned]

    single = np.array([cost([head]) for head in range(len(table))])  # (heads, kinds, passages)
    rows: dict[str, Any] = {"heads": len(table), "single": single.tolist(), "sets": {}}
    for kind, name in enumerate(("share of variance", "cosine")):
        halves = single[:, kind, ::2].mean(1), single[:, kind, 1::2].mean(1)
        line = [f"halves {_ranks(*halves):.2f}"]
        line += [f"{score} {_ranks(table[score].to_numpy(), single[:, kind].mean(1)):+.2f}" for score in SCORES]
        print(f"{name}: " + ", ".join(line), flush=True)
    for fraction in FRACTIONS:
        number = round(fraction * len(table))
        sets = {name: np.argsort(sign * table[name].to_numpy())[:number].tolist() for name, sign in SCORES.items()}
        sets["removable"] = [found.head(*each).item for each in found.removable(number)]
        sets["removable, 4 steps"] = [found.head(*each).item for each in found.removable(number, steps=4)]
        costs = {name: np.mean(cost(off), 1).tolist() for name, off in sets.items()}
        rng = np.random.default_rng(number)
        drawn = np.array(
            [np.mean(cost(rng.choice(len(table), number, replace=False).tolist()), 1) for _ in range(RANDOM)]
        )
        costs["random"] = drawn.mean(0).tolist()
        costs["error"] = (drawn.std(0, ddof=1) / RANDOM**0.5).tolist()
        rows["sets"][str(fraction)] = costs
        replace_file(target, json.dumps(rows))
        print(number, {name: [round(x, 4) for x in each] for name, each in costs.items()}, flush=True)


def _ranks(one: Any, other: Any) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(*(np.argsort(np.argsort(each)) for each in (one, other)))[0, 1])


if __name__ == "__main__":
    main()
