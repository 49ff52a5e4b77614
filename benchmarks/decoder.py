"""A small decoder trained on a folder of text, for benchmarks that need a trained model: a minute of a large GPU.

A Llama-like decoder reads windows of 512 tokens of a byte-level vocabulary that is made from the text. A twelfth of the
windows repeat themselves: a piece of text, or random tokens, and then the same again, so that heads that copy form
early. Training goes by the clock: the learning rate rises, and falls to nothing when the time is over. What was trained
is saved, resumes where it stopped, and is loaded by :func:`load`. Without a GPU, ``--size small --rows 16 --first
0.3``, which begins with short copies and nothing else, takes a few minutes of one core::

    python -m benchmarks.decoder tokens text tokens.npz
    python -m benchmarks.decoder train tokens.npz decoder_0.pt --seed 0 --seconds 60
    python -m benchmarks.decoder split decoder_0.pt $OUT/decoder_0      # weights in bfloat16, in parts of 15 MB

A text is a file ``NAME.prose.txt`` or ``NAME.code.txt`` (:mod:`benchmarks.debian_text` makes them); every fortieth
piece of 20,000 characters is held out.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

PIECE, HELD_OUT, MOST = 20_000, 40, 24_000_000  # characters of a piece, one in so many is held out, and the most of all
WINDOW, REPEATS = 512, 1 / 12
RATE, MUON_RATE, WARM, DECAY, MOMENTS = 3e-3, 6e-3, 0.04, 0.1, (0.9, 0.95)
SIZE = {"layers": 8, "heads": 16, "width": 512, "hidden": 1024, "window": WINDOW}
SMALL = {"layers": 4, "heads": 8, "width": 128, "hidden": 256, "window": 128}  # for a processor
MANY = {"layers": 7, "heads": 16, "head": 16, "width": 128, "hidden": 256, "window": 128}  # 112 heads, for a processor
TINY = {"layers": 2, "heads": 4, "width": 64, "hidden": 64, "window": 64}
SIZES = {"large": SIZE, "many": MANY, "small": SMALL, "tiny": TINY}


# -- text --------------------------------------------------------------------------------------------------------------


def pieces(text: str) -> Iterator[str]:
    """A text in documents, and long documents in parts."""
    for document in text.split("\n\f\n"):
        for start in range(0, len(document), PIECE):
            yield document[start : start + PIECE]


def write_tokens(folder: Path, target: Path, vocabulary: int) -> None:
    """Make a vocabulary and save all texts as its tokens: ``train``, and what is held out of each text by its name."""
    from tokenizers import ByteLevelBPETokenizer

    texts = {path.stem: list(pieces(path.read_text("utf-8")[:MOST])) for path in sorted(folder.glob("*.txt"))}
    tokenizer = ByteLevelBPETokenizer()
    sample = [piece for each in texts.values() for piece in each[1::6]]
    tokenizer.train_from_iterator(sample, vocab_size=vocabulary, special_tokens=["<end>"])
    found: dict[str, Any] = {}
    learnt = []
    for name, each in texts.items():
        held = each[::HELD_OUT]
        found[name] = _codes(tokenizer, held)
        learnt.append(_codes(tokenizer, [piece for k, piece in enumerate(each) if k % HELD_OUT]))
        print(f"{name}: {len(learnt[-1]) / 1e6:.2f}M tokens, {len(found[name])} held out", flush=True)
    found["train"] = np.concatenate(learnt)
    found["vocabulary"] = np.frombuffer(tokenizer.to_str().encode(), dtype=np.uint8)
    np.savez_compressed(target, **found)


def _codes(tokenizer: Any, texts: list[str]) -> Any:
    """Tokens of some pieces, each behind an end of text."""
    parts = [[0, *each.ids] for each in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array(each, dtype=np.uint16) for each in parts])


def windows(tokens: Any, count: int, length: int = WINDOW) -> Tensor:
    """Windows that do not overlap, spread over the tokens."""
    places = np.linspace(0, len(tokens) - length, count + 1)[:-1].astype(int)
    if len(places) > 1 and places[1] - places[0] < length:
        raise SystemExit(f"{len(tokens)} tokens hold no {count} windows of {length}")
    return torch.as_tensor(np.stack([tokens[start : start + length] for start in places]).astype(np.int64))


# -- the model ---------------------------------------------------------------------------------------------------------


def build(size: dict[str, int], vocabulary: int, seed: int) -> Any:
    """A decoder before training."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size["width"],
        intermediate_size=size["hidden"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["heads"],
        head_dim=size.get("head", size["width"] // size["heads"]),
        max_position_embeddings=2 * size.get("window", WINDOW),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def save(model: Any, size: dict[str, int], path: Path, **more: Any) -> None:
    """Write a model and what it takes to build it."""
    partial = path.with_suffix(".part")
    vocabulary = model.config.vocab_size
    torch.save({"weights": model.state_dict(), "size": size, "vocabulary": vocabulary, **more}, partial)
    partial.replace(path)


def load(path: Path, device: str = "cpu") -> Any:
    """A saved decoder: a file of :func:`save`, or the beginning of the names of parts that :func:`split` wrote."""
    parts = sorted(path.parent.glob(f"{path.name}.[0-9]"))
    if parts:
        kept: dict[str, Any] = {"weights": {}}
        for part in parts:
            found = torch.load(part, map_location="cpu", weights_only=True)
            kept = {**kept, **found, "weights": {**kept["weights"], **found["weights"]}}
    else:
        kept = torch.load(path, map_location="cpu", weights_only=True)
    model = build(kept["size"], kept["vocabulary"], 0)
    model.load_state_dict(kept["weights"], strict=False)
    model.tie_weights()
    return model.to(device).eval()


def split(path: Path, target: Path, largest: int = 15_000_000) -> None:
    """Weights in bfloat16, in files of at most so many bytes."""
    kept = torch.load(path, map_location="cpu", weights_only=True)
    parts: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, value in kept["weights"].items():
        if name == "lm_head.weight":  # is the embedding
            continue
        if parts[-1] and filled + 2 * value.numel() > largest:
            parts.append({})
            filled = 0
        parts[-1][name] = value.bfloat16()
        filled += 2 * value.numel()
    for number, weights in enumerate(parts):
        torch.save({"weights": weights, "size": kept["size"], "vocabulary": kept["vocabulary"]}, f"{target}.{number}")


# -- training ----------------------------------------------------------------------------------------------------------


class Batches:
    """Windows of the text, some of which repeat themselves, on the device of the model."""

    def __init__(  # noqa: PLR0913, PLR0917
        self, tokens: Any, vocabulary: int, rows: int, window: int, repeats: float, seed: int, device: str
    ) -> None:
        self.tokens = torch.as_tensor(tokens.astype(np.int32)).to(device)
        self.vocabulary, self.rows, self.window, self.device = vocabulary, rows, window, device
        self.repeating = max(1, round(repeats * rows))
        self.rng = np.random.default_rng(seed)
        self.steps = torch.arange(window, device=device)

    def next(self) -> tuple[Tensor, Tensor]:
        """Tokens, and labels that leave out the first copy of random tokens."""
        places = torch.as_tensor(self.rng.integers(0, len(self.tokens) - self.window, self.rows)).to(self.device)
        index = self.steps.repeat(self.rows, 1)
        periods = self.rng.integers(16, self.window // 2 + 1, self.repeating).tolist()
        for row, period in enumerate(periods):
            index[row] %= period
        inputs = self.tokens[places[:, None] + index].long()
        labels = inputs.clone()
        for row, period in enumerate(periods[: self.repeating // 2]):  # half of these are random tokens
            drawn = torch.as_tensor(self.rng.integers(1, self.vocabulary, period)).to(self.device)
            inputs[row] = labels[row] = drawn[index[row]]
            labels[row, :period] = -100
        return inputs, labels


def token_losses(model: Any, inputs: Tensor) -> Tensor:
    """Loss of every token but the first, (batch, tokens - 1)."""
    logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
    losses = cross_entropy(logits.float().flatten(0, 1), inputs[:, 1:].flatten(), reduction="none")
    return losses.view(len(inputs), -1)


@torch.no_grad()
def copying(model: Any, vocabulary: int, device: str, tokens: int, prompts: int = 16) -> tuple[float, float]:
    """Loss on random tokens, and on their second copy."""
    generator = torch.Generator().manual_seed(1)
    half = torch.randint(1, vocabulary, (prompts, tokens // 2), generator=generator)
    losses = token_losses(model, half.repeat(1, 2).to(device))
    return float(losses[:, : tokens // 2 - 1].mean()), float(losses[:, tokens // 2 :].mean())


def optimisers(model: Any, device: str, *, muon: bool) -> list[Any]:
    """AdamW, or Muon for the matrices of the layers and AdamW for the rest."""
    inner = [each for name, each in model.named_parameters() if muon and each.ndim == 2 and "layers" in name]
    known = {id(each) for each in inner}
    rest = [each for each in model.parameters() if id(each) not in known]
    found: list[Any] = [torch.optim.AdamW(rest, RATE, betas=MOMENTS, weight_decay=DECAY, fused=device == "cuda")]
    if inner:  # torch scales its steps to those of AdamW
        found.append(torch.optim.Muon(inner, MUON_RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"))
    for stepper in found:
        for group in stepper.param_groups:
            group["initial_lr"] = group["lr"]
    return found


def train(  # noqa: PLR0913
    tokens: Path, target: Path, size: dict[str, int], *, seed: int, seconds: float, rows: int, repeats: float,
    first: float, muon: bool,
) -> None:  # fmt: skip
    """Train a decoder for so many seconds in all, of the processor where there is no GPU; what was begun goes on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = np.load(tokens)
    vocabulary = len(json.loads(bytes(data["vocabulary"]))["model"]["vocab"])
    model = build(size, vocabulary, seed).to(device).train()
    steppers = optimisers(model, device, muon=muon)
    spent, step, curve = 0.0, 0, list[Any]()
    if target.exists():
        kept = torch.load(target, map_location=device, weights_only=True)
        model.load_state_dict(kept["weights"])
        for stepper, state in zip(steppers, kept.get("steppers", []), strict=False):
            stepper.load_state_dict(state)
        spent, step, curve = kept["spent"], kept["step"], kept["curve"]
    window = size["window"]
    short, batches = (
        Batches(data["train"], vocabulary, rows * times, window // times, share, 1000 * seed + step, device)
        for times, share in ((2, 1.0), (1, repeats))
    )
    clock = time.time if device == "cuda" else time.process_time  # a processor may have other work as well
    began, told = clock() - spent, spent
    while (spent := clock() - began) < seconds:
        share = spent / seconds
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = group["initial_lr"] * min(1.0, (step + 1) / 50, share / WARM + 0.02) * (1 - share)
        inputs, labels = (short if share < first else batches).next()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):  # processors are slower with it
            logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
        loss = cross_entropy(logits.float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
        step += 1
        if step % 20 == 0:
            last = float(loss.detach())  # waits for the GPU, so that the clock tells what was computed
            if not math.isfinite(last):
                raise SystemExit(f"the loss is {last} after {step} steps")
            if spent - told > seconds / 12:
                told = spent
                curve.append([step, round(spent, 1), last, *copying(model, vocabulary, device, window // 2)])
                states = [each.state_dict() for each in steppers]
                save(model, size, target, steppers=states, spent=spent, step=step, curve=curve, seed=seed)
                print(
                    f"seed {seed}, step {step}, {spent:.0f} s: loss {last:.3f}, random tokens {curve[-1][3]:.2f}, "
                    f"their copies {curve[-1][4]:.3f}",
                    flush=True,
                )
    model.eval()
    end = copying(model, vocabulary, device, window // 2)
    print(f"seed {seed}: {step} steps, {step * rows * window / 1e6:.1f}M tokens, copies {end[1]:.3f}", flush=True)
    states = [each.state_dict() for each in steppers]
    save(model, size, target, steppers=states, spent=spent, step=step, curve=curve, seed=seed, copies=end[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("tokens")
    one.add_argument("text", type=Path)
    one.add_argument("target", type=Path)
    one.add_argument("--vocabulary", type=int, default=8192)
    one = commands.add_parser("train")
    one.add_argument("tokens", type=Path)
    one.add_argument("target", type=Path)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--seconds", type=float, default=60.0)
    one.add_argument("--rows", type=int, default=64)
    one.add_argument("--size", choices=SIZES, default="large")
    one.add_argument("--repeats", type=float, default=REPEATS, help="share of the windows that repeat themselves")
    one.add_argument("--first", type=float, default=0.0, help="share of the time for short windows that all do")
    one.add_argument(
        "--muon", action="store_true", help="Muon for the matrices of the layers: fewer steps on a processor"
    )
    one = commands.add_parser("split")
    one.add_argument("model", type=Path)
    one.add_argument("target", type=Path)
    given = parser.parse_args()
    if given.command == "tokens":
        write_tokens(given.text, given.target, given.vocabulary)
    elif given.command == "split":
        split(given.model, given.target)
    else:
        named = {each: getattr(given, each) for each in ("seed", "seconds", "rows", "repeats", "first", "muon")}
        train(given.tokens, given.target, SIZES[given.size], **named)


if __name__ == "__main__":
    main()
