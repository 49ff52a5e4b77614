"""Do the alarms of a watch come before the loss? Small decoders that go wrong in known ways, and healthy ones.

Each run is a decoder of two layers, width 64 and four heads, which learns letters for a few seconds of one core. The
loss has gone wrong at the first step at which its mean over eight steps is 0.15 above the smallest such mean before.
The lead of an alarm is that step minus its own. The rule of ``hasty`` was made on the runs of seeds 0 to 5 of all
families but those marked below; this script runs others. Readings are kept run by run, so that a study that is stopped
goes on where it was, and rules can be scored again without training anew::

    python -m benchmarks.watch_alarms runs --seconds 600
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import bulkedge as be
from benchmarks.harness import Table, command, page, record
from bulkedge.lab.studies.heads.watch import batch_of, texts
from bulkedge.models.loading.default import ALPHABET
from bulkedge.models.watching.alarms import AlarmLog
from bulkedge.models.watching.measures import NAMES
from bulkedge.support.files import replace_file

TITLE = "The lead of alarms over the loss"
SCORED = ("hasty", "runaway", "frozen")
NOTE = "`hasty` and `runaway` are alarms, `frozen` is a warning. Leads are of `hasty`, in steps of 240."
LAYERS, HEADS, WIDTH, TOKENS, BATCH = 2, 4, 64, 64, 4
STEPS, EVERY = 240, 4
FIRST = 10  # seed of the runs that are scored; rules were made on those below
WINDOW, ABOVE = 8, 0.15  # steps of the mean loss, and nats above its minimum at which it has gone wrong


class Attention(nn.Module):
    """Attention as nanoGPT and others write it: torch's function, called by the module itself."""

    def __init__(self, scale: float, *, qk_norm: bool, half: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.scale, self.qk_norm, self.rounds = scale / math.sqrt(WIDTH // HEADS), qk_norm, half

    def forward(self, x: Tensor) -> Tensor:
        """Causal attention."""
        q, k, v = (
            each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.qk_norm:
            q, k = (each * (each.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
        if self.rounds:  # as queries and keys of half precision are: beyond 65504 there is infinity
            q, k = q.half().float(), k.half().float()
        return self.o_proj(
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    """Attention and a feed-forward layer, with norms before, after, or none."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        norms = [nn.Identity() if options["norm"] == "none" else nn.LayerNorm(WIDTH) for _ in range(2)]
        self.norms, self.post = nn.ModuleList(norms), options["norm"] == "post"
        self.attn = Attention(options["scale"], qk_norm=options["qk_norm"], half=options["half"])
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(options["dropout"])

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        parts: tuple[Any, ...] = (self.attn, lambda y: self.down(gelu(self.up(y))))
        for norm, part in zip(self.norms, parts, strict=True):
            x = norm(x + self.drop(part(x))) if self.post else x + self.drop(part(norm(x)))
        return x


class Decoder(nn.Module):
    """A decoder of letters."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(options) for _ in range(LAYERS)])
        self.norm = nn.Identity() if options["norm"] == "none" else nn.LayerNorm(WIDTH)
        self.head, self.again = nn.Linear(WIDTH, len(ALPHABET)), options["checkpointing"]
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=options["init"])

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(self.norm(x))


class Run(NamedTuple):
    """A run to be made: which family, which of its variants, which seed."""

    family: str
    seed: int
    options: dict[str, Any]


PLAIN: dict[str, Any] = {
    "norm": "pre", "scale": 1.0, "qk_norm": False, "half": False, "dropout": 0.0, "checkpointing": False, "init": 0.08,
    "optimiser": "adam", "rate": 0.003, "warm": 20, "shape": "cosine", "growth": 1.0, "accumulate": 1, "noise": 0.0,
    "batch": BATCH, "decay": 0.0,
}  # fmt: skip
"""A healthy run, and what variants change of it."""
HEALTHY: dict[str, dict[str, Any]] = {
    "plain": {},
    "low rate": {"rate": 0.001},
    "middling rate": {"rate": 0.005},
    "constant rate": {"shape": "constant"},
    "accumulation": {"accumulate": 2},
    "label noise": {"noise": 0.2},
    "checkpointing": {"checkpointing": True},
    "scores x 24": {"scale": 24.0},
    "QK-norm": {"qk_norm": True, "scale": 1.0},
    "dropout": {"dropout": 0.2},
    "SGD": {"optimiser": "sgd", "rate": 0.1},
    "post-norm": {"norm": "post", "rate": 0.002},
    "small batches": {"batch": 2},
    "large batches": {"batch": 12},
    "weight decay": {"decay": 0.1},
    "small weights": {"init": 0.02},
    "large weights": {"init": 0.16},
    "long warm-up": {"warm": 120},
    # tried after the rule was made
    "high rate": {"rate": 0.008, "warm": 40},
    "restarts": {"shape": "restarts", "rate": 0.004},
    "narrow start": {"init": 0.04, "rate": 0.004},
}
# rates that grow by a factor over the run, slowly: the loss is well when scores begin to run away
SLOW: dict[str, dict[str, Any]] = {
    "slow": {"rate": 0.002, "growth": 100.0},
    "slower": {"rate": 0.003, "growth": 20.0},
    "slow, SGD": {"optimiser": "sgd", "rate": 0.1, "growth": 100.0},
    "slow, post-norm": {"norm": "post", "rate": 0.002, "growth": 100.0},
    "slow, scores x 8": {"scale": 8.0, "rate": 0.002, "growth": 60.0},
    "slow, linear": {"rate": 0.001, "growth": 100.0, "shape": "linear"},
    # tried after the rule was made
    "slow, QK-norm": {"qk_norm": True, "rate": 0.002, "growth": 100.0},
    "slow, label noise": {"noise": 0.2, "rate": 0.002, "growth": 100.0},
    "slow, SGD, no norm": {"optimiser": "sgd", "rate": 0.02, "growth": 200.0, "norm": "none", "init": 0.12},
    "slow, large batches": {"batch": 12, "rate": 0.002, "growth": 100.0},
}
SICK: dict[str, dict[str, Any]] = {
    "no warm-up": {"rate": 0.03, "warm": 0, "shape": "constant"},
    "no norm": {"norm": "none", "rate": 0.01, "init": 0.12, "shape": "constant"},
    "wrong scale": {"scale": 64.0, "rate": 0.01, "shape": "constant"},
    "too high a rate": {"rate": 0.06, "warm": 20, "shape": "constant"},
    "too high, SGD": {"optimiser": "sgd", "rate": 3.0, "shape": "constant"},
    "half precision": {"half": True, "norm": "none", "rate": 0.01, "growth": 50.0},
}


def plan(seeds: int) -> Iterator[Run]:
    """All runs, seed by seed, so that a study that is stopped has some of each."""
    for seed in range(FIRST, FIRST + seeds):
        for family, changes in (SLOW | {f"healthy: {name}": each for name, each in HEALTHY.items()} | SICK).items():
            yield Run(family, seed, PLAIN | changes)


def rate_at(options: dict[str, Any], step: int) -> float:
    """Learning rate of a step."""
    warm = min(1.0, (step + 1) / max(options["warm"], 1))
    part = step / STEPS
    if options["growth"] != 1.0:
        linear = options["shape"] == "linear"
        return options["rate"] * warm * (1 + part * (options["growth"] - 1) if linear else options["growth"] ** part)
    if options["shape"] == "restarts":
        part = 3 * part % 1
    falling = 0.55 + 0.45 * math.cos(math.pi * part) if options["shape"] in {"cosine", "restarts"} else 1.0
    return options["rate"] * warm * falling


def trained(run: Run) -> dict[str, Any]:
    """Losses, lengths of gradients and readings of a run."""
    options = run.options
    torch.manual_seed(run.seed)
    model, generator = Decoder(options).train(), torch.Generator().manual_seed(1000 + run.seed)
    if options["optimiser"] == "sgd":
        optimiser: Any = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    else:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=options["decay"])
    learnt, losses, lengths = texts()[0], [], []
    with be.watch(model, every=EVERY) as watched:
        for step in range(STEPS):
            watched.at(step)
            for group in optimiser.param_groups:
                group["lr"] = rate_at(options, step)
            optimiser.zero_grad()
            total = 0.0
            for _ in range(options["accumulate"]):
                ids = batch_of(learnt, options["batch"], TOKENS, generator)
                wanted = ids[:, 1:].clone()
                if options["noise"]:
                    wrong = torch.rand(wanted.shape, generator=generator) < options["noise"]
                    wanted[wrong] = torch.randint(len(ALPHABET), (int(wrong.sum()),), generator=generator)
                loss = cross_entropy(model(ids)[:, :-1].flatten(0, 1), wanted.flatten()) / options["accumulate"]
                loss.backward()
                total += float(loss.detach())
            losses.append(total)
            lengths.append(float(nn.utils.clip_grad_norm_(model.parameters(), math.inf)))
            if not math.isfinite(total):
                break
            optimiser.step()
    data = watched.data
    return {
        "loss": losses,
        "gradient": lengths,
        "step": data.step.values,
    } | {str(name): each.values.astype(np.float32) for name, each in data.items()}


# -- scores ------------------------------------------------------------------------------------------------------------


def wrong_at(losses: Any) -> int | None:
    """The step at which the loss has gone wrong."""
    least = math.inf
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return step
        if step >= WINDOW - 1:
            mean = float(np.mean(losses[step - WINDOW + 1 : step + 1]))
            if mean > least + ABOVE:
                return step
            least = min(least, mean)
    return None


def first_alarms(run: Any) -> dict[str, int]:
    """The first step of each kind of alarm, by the rules as they are now."""
    log = AlarmLog()
    names = [*NAMES, "residual"]
    for n, step in enumerate(run["step"].tolist()):
        log.add(step, {name: run[name][n].astype(float) for name in names})
    found: dict[str, int] = {}
    for each in log.alarms:
        found.setdefault(each.kind, each.step)
    return found


def scored(folder: Path) -> list[dict[str, Any]]:
    """Every run that is there: family, seed, when its loss went wrong, and its alarms."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        family, seed = path.stem.rsplit("-", 1)
        with np.load(path) as run:
            wrong = wrong_at(run["loss"].tolist())
            found.append({"family": family, "seed": int(seed), "wrong": wrong, "alarms": first_alarms(run)})
    return found


def tables(runs: list[dict[str, Any]]) -> list[Table]:
    """A row for each family: how many runs went wrong, and how many alarms came before that, or at all."""
    headings = ["family", "runs", "loss goes wrong", *(f"{kind} before it" for kind in SCORED), "median lead", "at all"]
    result = Table(TITLE, headings, NOTE)
    for family in dict.fromkeys(each["family"] for each in runs):
        mine = [each for each in runs if each["family"] == family]
        wrong = [each for each in mine if each["wrong"] is not None]
        before = [
            sum(each["alarms"].get(kind, math.inf) < each["wrong"] for each in wrong) if wrong else "-"
            for kind in SCORED
        ]
        leads = [each["wrong"] - each["alarms"]["hasty"] for each in wrong if "hasty" in each["alarms"]]
        lead = f"{np.median(leads):.0f}" if leads else "-"
        raised = sum("hasty" in each["alarms"] for each in mine)
        result.add(family.replace("_", " "), len(mine), len(wrong), *before, lead, raised)
    return [result]


def main() -> None:
    """Make the runs that are not there yet, and score all that are."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("folder", type=Path, help="where runs are kept")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no run is begun")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each family")

    def measured(chosen: argparse.Namespace) -> dict[str, Any]:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        end = time.time() + chosen.seconds
        for run in plan(chosen.seeds):
            path = chosen.folder / f"{run.family.replace(' ', '_').replace(':', '')}-{run.seed}.npz"
            if not path.exists() and time.time() < end:
                np.savez_compressed(stream := BytesIO(), **trained(run))
                replace_file(path, stream.getvalue())
        about = f"one core, torch {torch.__version__}"
        return record(tables(scored(chosen.folder)), about)

    command(parser, measured, lambda numbers: page(TITLE, __doc__ or "", numbers))


if __name__ == "__main__":
    main()
