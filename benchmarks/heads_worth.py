"""What every head of a trained decoder is worth, and which numbers knew it: measured, head by head and set by set.

True costs are losses with heads off (or replaced by their mean output) minus the loss with all, on text that no score
was computed on: documentation, a dictionary, code, and random tokens that come twice. Scores are computed from 8192
tokens of other text: those of the scan, published ones (attention on the first key, entropy, norm of the output,
first-order Taylor), and those of :mod:`bulkedge.models.scanning.importance`. Everything is appended to a JSON row by
row, and a run that is stopped or out of time goes on where it was::

    python -m benchmarks.heads_worth tokens.npz decoder_0.pt worth_0.json --seconds 70
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.decoder import load, token_losses, windows
from bulkedge.models.hooks.gates import HeadGates, OutputReader
from bulkedge.models.scanning.importance import copied_tokens, gate_samples
from bulkedge.models.scanning.removal import _greedy
from bulkedge.support.files import replace_file

TEXTS = {"docs": ("postgresql.prose", "python.prose"), "dictionary": ("dictionary.prose",), "code": ("linux.code",)}
CALIBRATION, CALIBRATED = "linux.prose", 16  # windows of 512 tokens that scores are computed from
FRACTIONS, RANDOM, SAMPLES, COPY = (0.1, 0.2, 0.05), 50, 128, 256  # samples: drawn labels of all windows
MODES = ("zero", "mean")
STEPS = 4  # in which heads are chosen where scores are measured again in between
LOW = {"sink": -1, "largest": -1}  # scores that take heads with the largest values first


class Bench:
    """A model, what it is measured on, and the rows that are there already."""

    def __init__(self, tokens: Path, model: Path, target: Path, seconds: float, sizes: tuple[int, int, int]) -> None:
        count, calibrated, self.random = sizes
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        self.model = load(model, self.device)
        self.target, self.deadline = target, time.time() + seconds
        self.rows: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
        data = np.load(tokens)
        self.vocabulary = self.model.config.vocab_size
        self.window = self.model.config.max_position_embeddings // 2  # what it was trained on
        self.copy = min(COPY, self.window)
        self.known: dict[Any, dict[str, list[float]]] = {}  # costs of sets that several scores may choose
        self.drawn: dict[Any, Tensor] = {}  # samples with all heads on
        rng = torch.Generator().manual_seed(7)
        self.sets = {
            name: torch.cat([windows(data[each], count // len(parts), self.window) for each in parts])
            for name, parts in TEXTS.items()
        }
        self.sets["copies"] = copied_tokens(range(1, self.vocabulary), 2 * count, self.copy, rng)
        self.sets = {name: each.to(self.device) for name, each in self.sets.items()}
        self.text = windows(data[CALIBRATION], calibrated, self.window).to(self.device)
        self.copies = copied_tokens(range(1, self.vocabulary), calibrated, self.copy, rng).to(self.device)
        self.gates = HeadGates.of(self.model, input_ids=self.text[:1], use_cache=False)
        reader = OutputReader(self.gates)
        with torch.no_grad(), reader.reading():
            self.model(input_ids=self.text, use_cache=False)
        self.outputs = [reader.columns(site.name) for site in self.gates.sites]
        self.means = [each["mean_output"] for each in self.outputs]
        self.count = self.gates.count
        self.whole = self.losses(None, None)
        self.saved = time.time()

    def row(self, name: str, make: Callable[[], Any]) -> Any:
        """A row that is there, or made now if there is time."""
        if name not in self.rows:
            if time.time() > self.deadline:
                self.save()
                print(f"out of time before {name}; run again to go on", flush=True)
                raise SystemExit(0)
            self.rows[name] = make()
            if time.time() - self.saved > 10:
                self.save()
        return self.rows[name]

    def save(self) -> None:
        """Write all rows."""
        replace_file(self.target, json.dumps(self.rows))
        self.saved = time.time()

    @torch.no_grad()
    def losses(self, off: Any, means: Any) -> dict[str, list[float]]:
        """Mean loss of even and of odd sequences of each set, with heads off."""
        gates = torch.ones(self.count, device=self.device)
        gates[torch.as_tensor([] if off is None else off, dtype=torch.long, device=self.device)] = 0
        found = {}
        with self.gates.on(gates, means):
            for name, inputs in self.sets.items():
                losses = token_losses(self.model, inputs)
                rows = losses[:, inputs.shape[1] // 2 :].mean(1) if name == "copies" else losses.mean(1)
                found[name] = torch.stack([rows[::2].mean(), rows[1::2].mean()])
        return {name: each.tolist() for name, each in found.items()}

    def cost(self, off: Any, mode: str) -> dict[str, list[float]]:
        """Losses less those of the whole model."""
        key = mode, frozenset(off)
        if key not in self.known:
            found = self.losses(off, self.means if mode == "mean" else None)
            self.known[key] = {
                name: [round(a - b, 6) for a, b in zip(each, self.whole[name], strict=True)]
                for name, each in found.items()
            }
        return self.known[key]

    # -- scores --------------------------------------------------------------------------------------------------------

    def samples(self, kind: str, mode: str, at: Tensor | None = None) -> Tensor:
        """Fisher samples on text or on copies, (samples, heads)."""
        if at is None and (kind, mode) not in self.drawn:
            self.drawn[kind, mode] = self.samples(kind, mode, torch.ones(self.count, device=self.device))
        if at is None:
            return self.drawn[kind, mode]
        generator = torch.Generator(self.device).manual_seed(0)
        inputs = self.text if kind == "text" else self.copies
        return gate_samples(
            self.gates,
            {"input_ids": inputs, "use_cache": False},
            draws=max(1, SAMPLES // len(inputs)),
            generator=generator,
            start=0 if kind == "text" else self.copy // 2,
            means=self.means if mode == "mean" else None,
            at=at,
        )

    def fisher(self, mode: str, at: Tensor | None = None) -> dict[str, Tensor]:
        """Importance on text, on copies, and on both."""
        found = {kind: self.samples(kind, mode, at).square().mean(0) / 2 for kind in ("text", "copies")}
        return found | {"both": found["text"] + found["copies"]}

    def taylor(self) -> Tensor:
        """Effects of gates on the loss of the text itself, (sequences, heads), in nats a token."""
        values = torch.ones(len(self.text), self.count, device=self.device, requires_grad=True)
        with self.gates.on(values):
            loss = token_losses(self.model, self.text).sum()
        return torch.autograd.grad(loss, values)[0] / self.text.shape[1]

    @torch.no_grad()
    def attention(self) -> dict[str, Tensor]:
        """Numbers that published scores and the probe take from attention matrices."""
        found: dict[str, list[Tensor]] = {name: [] for name in ("sink", "entropy", "largest", "induction", "previous")}
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")
        for start in range(0, len(self.text), 4):
            text = self.model(
                input_ids=self.text[start : start + 4], output_attentions=True, use_cache=False
            ).attentions
            copy = self.model(
                input_ids=self.copies[start : start + 4], output_attentions=True, use_cache=False
            ).attentions
            found["sink"].append(torch.cat([each[:, :, 16:, 0].mean((0, 2)) for each in text]))
            found["largest"].append(torch.cat([each[:, :, 16:].amax(-1).mean((0, 2)) for each in text]))
            entropies = [torch.special.entr(each[:, :, 16:].float()).sum(-1).mean((0, 2)) for each in text]
            found["entropy"].append(torch.cat(entropies))
            rows = torch.arange(self.copy // 2, self.copy, device=self.device)
            for name, keys in (("induction", rows - self.copy // 2 + 1), ("previous", rows - 1)):
                found[name].append(torch.cat([each[:, :, rows, keys].mean((0, 2)) for each in copy]))
        self.model.set_attn_implementation(before)
        return {name: torch.stack(each).mean(0) for name, each in found.items()}

    def scan_columns(self) -> dict[str, list[float]]:
        """The numbers of heads that a scan has from attention matrices, on two windows."""
        try:
            from bulkedge.heads.measures.attention_measures import measure_heads
            from bulkedge.models.hooks.capture import map_heads, stream
        except ImportError as error:
            print(f"the scan's columns are left out: {error}", flush=True)
            return {}
        texts = []
        for text in self.text[:2]:
            layers: list[Any] = []

            def visit(each: Any, layers: list[Any] = layers) -> None:
                parts = map_heads(
                    lambda scores: measure_heads(
                        scores.content, visibility=scores.visibility, factors=scores.factors,
                        sink_scores=scores.sinks, operator=scores.operator(),
                    ),
                    each.layer,
                )  # fmt: skip
                layers.append({name: np.concatenate([one[name] for one in parts]) for name in parts[0]})

            stream(self.model, visit, input_ids=text[None], use_cache=False)
            texts.append(layers)
        names = [name for name, each in texts[0][0].items() if each.ndim == 1]
        return {
            name: np.median([np.concatenate([layer[name] for layer in one]) for one in texts], 0).tolist()
            for name in names
        }

    def scores(self, modes: tuple[str, ...]) -> dict[str, list[float]]:
        """Every score of every head."""
        found: dict[str, Any] = dict(self.attention())
        found["evenness"] = -found["entropy"]
        taylor = self.taylor()
        found |= {"taylor": taylor.abs().mean(0), "taylor_mean": taylor.mean(0).abs(), "taylor_signed": -taylor.mean(0)}
        columns = {name: torch.cat([each[name] for each in self.outputs]) for name in ("norm", "output", "variation")}
        found |= columns
        for mode, column in zip(MODES, ("output", "variation"), strict=True):
            if mode in modes:
                found |= {f"fisher_{kind}_{mode}": each for kind, each in self.fisher(mode).items()}
                found[f"ranks_{mode}"] = _ranks(columns[column]) + _ranks(found[f"fisher_both_{mode}"])
        return {name: [float(f"{x:.6g}") for x in each.tolist()] for name, each in found.items()}

    # -- sets ----------------------------------------------------------------------------------------------------------

    def stepwise(self, number: int, mode: str, steps: int = STEPS) -> list[int]:
        """Heads that `removable` names, in steps with the importance measured again in between."""
        off: list[int] = []
        gates, sizes = torch.ones(self.count, device=self.device), np.ones(self.count, dtype=int)
        for step in range(1, steps + 1):
            at = gates if off else None
            effects = [self.samples(kind, mode, at).cpu().numpy() for kind in ("text", "copies")]
            off += _greedy(effects, sizes, number * step // steps, np.inf, off)
            gates[off] = 0
        return off

    def same_layers(self, off: list[int], rng: np.random.Generator) -> list[int]:
        """As many random heads of the same layers."""
        found: list[int] = []
        for _, part in self.gates.slices():
            number = sum(part.start <= each < part.stop for each in off)
            found += rng.choice(np.arange(part.start, part.stop), number, replace=False).tolist()
        return found


def _ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def measure(bench: Bench, modes: tuple[str, ...]) -> None:
    """All rows."""
    began = time.time()

    def told(name: str) -> None:
        bench.save()
        print(f"{name} after {time.time() - began:.0f} s", flush=True)

    device = torch.cuda.get_device_name() if bench.device == "cuda" else "CPU"
    bench.row("about", lambda: {
        "heads": bench.count, "layers": len(bench.gates.sites), "device": device, "torch": torch.__version__,
        "parameters": sum(each.numel() for each in bench.model.parameters()), "losses": bench.whole,
        "tokens": {name: each.numel() for name, each in bench.sets.items()},
    })  # fmt: skip
    print("losses", {name: round(sum(each) / 2, 3) for name, each in bench.whole.items()}, flush=True)
    scores = bench.row("scores", lambda: bench.scores(modes))
    bench.row("samples", lambda: {
        f"{kind}_{mode}": [[float(f"{x:.4g}") for x in row] for row in bench.samples(kind, mode).tolist()]
        for kind in ("text", "copies") for mode in modes
    })  # fmt: skip
    told("scores")
    for mode in modes:
        for head in range(bench.count):
            bench.row(f"single {mode} {head}", lambda head=head, mode=mode: bench.cost([head], mode))
        told(f"single heads, {mode}")
    for mode in modes:
        for fraction in FRACTIONS:
            number = max(1, round(fraction * bench.count))
            chosen: dict[str, list[int]] = {}
            for name, values in scores.items():
                if name not in ("induction", "previous"):
                    order = np.argsort(LOW.get(name, 1) * np.array(values), kind="stable")
                    chosen[name] = order[:number].tolist()
            key = f"sets {mode} {fraction}"
            chosen |= bench.row(f"{key} chosen", lambda number=number, mode=mode: {
                "stepwise": bench.stepwise(number, mode), "removable": bench.stepwise(number, mode, 1)
            })  # fmt: skip
            for name, off in chosen.items():
                bench.row(f"{key} {name}", lambda off=off, mode=mode: {"off": off, "cost": bench.cost(off, mode)})
            for draw in range(bench.random):
                off = np.random.default_rng([draw, number]).choice(bench.count, number, replace=False).tolist()
                bench.row(f"{key} random {draw}", lambda off=off, mode=mode: bench.cost(off, mode))
            told(key)
    bench.row("columns", bench.scan_columns)
    same_layers(bench, modes)  # last, where time may be out
    told("all")


def same_layers(bench: Bench, modes: tuple[str, ...]) -> None:
    """Costs of as many random heads of the layers that the heads chosen in steps are in."""
    for mode, fraction in itertools.product(modes, FRACTIONS):
        key = f"sets {mode} {fraction}"
        ours = bench.rows[f"{key} stepwise"]["off"]
        for draw in range(bench.random):
            off = bench.same_layers(ours, np.random.default_rng([draw, len(ours), 1]))
            bench.row(f"{key} same layers {draw}", lambda off=off, mode=mode: bench.cost(off, mode))


def summary(rows: dict[str, Any]) -> str:
    """Rank correlations and costs of sets, in lines."""
    count = rows["about"]["heads"]
    lines = [f"{count} heads; losses {rows['about']['losses']}"]
    scores = rows["scores"] | {f"scan {name}": each for name, each in rows.get("columns", {}).items()}
    for mode in MODES:
        singles = [rows.get(f"single {mode} {head}") for head in range(count)]
        if any(each is None for each in singles):
            continue
        costs = {name: np.array([each[name] for each in singles]) for name in singles[0]}
        prose = np.concatenate([costs["docs"], costs["dictionary"]], 1)
        true = {"prose": prose.mean(1), "code": costs["code"].mean(1), "copies": costs["copies"].mean(1)}
        true["both"] = true["prose"] + true["copies"]
        halves = {name: _correlation(each[:, 0], each[:, 1]) for name, each in costs.items()}
        lines.append(f"-- {mode}: reliability by halves " + ", ".join(f"{n} {x:.2f}" for n, x in halves.items()))
        for name, values in scores.items():
            if not np.any(np.isnan(values)):
                found = {where: _correlation(np.array(values), each) for where, each in true.items()}
                lines.append(f"{name:24s} " + "  ".join(f"{where} {x:+.2f}" for where, x in found.items()))
        for fraction in FRACTIONS:
            key = f"sets {mode} {fraction}"
            lines.append(f"-- {key}: cost on docs, dictionary, code, copies")
            for name, row in rows.items():
                if name.startswith(key) and "cost" in row:
                    costs_of = [np.mean(each) for each in row["cost"].values()]
                    lines.append(f"{name[len(key) + 1 :]:24s} " + " ".join(f"{x:7.3f}" for x in costs_of))
            for kind in ("random", "same layers"):
                drawn = [rows[f"{key} {kind} {k}"] for k in range(RANDOM) if f"{key} {kind} {k}" in rows]
                if drawn:
                    table = np.array([[np.mean(each) for each in one.values()] for one in drawn])
                    middle, error = table.mean(0), table.std(0, ddof=1) / len(table) ** 0.5
                    text = " ".join(f"{m:7.3f}±{e:.3f}" for m, e in zip(middle, error, strict=True))
                    lines.append(f"{kind:24s} {text}")
    return "\n".join(lines)


def _correlation(a: Any, b: Any) -> float:
    """Spearman's rank correlation."""
    ranks = [np.argsort(np.argsort(each)) for each in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--seconds", type=float, default=70.0)
    sizes = "windows of each text, windows that scores are computed from, random sets"
    parser.add_argument("--sizes", type=int, nargs=3, default=(64, CALIBRATED, RANDOM), help=sizes)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="what takes a head's place")
    given = parser.parse_args()
    try:
        measure(Bench(given.tokens, given.model, given.json, given.seconds, tuple(given.sizes)), tuple(given.modes))
    finally:
        if given.json.exists():
            print(summary(json.loads(given.json.read_text())), flush=True)


if __name__ == "__main__":
    main()
