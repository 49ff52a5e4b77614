"""Decoders of benchmarks/trainability_gpu.py: groups, their language, their Adam, and what is made of the numbers."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import trainability_gpu, trainability_page  # noqa: E402
from benchmarks.deep_decoder import (  # noqa: E402  # noqa: E402
    CLIP,
    DECAY,
    LAST,
    MOMENTS,
    Adam,
    Decoders,
    Design,
    Size,
    levels,
    sequences,
    text_for,
    train,
    transitions,
)

SIZE = Size(width=16, heads=2, context=16, batch=2)
DESIGNS = [design for kind in trainability_gpu.KINDS for design in trainability_gpu.arms(kind, 2, SIZE)]


def build(design: Design, seeds: list[int], depth: int = 2) -> Decoders:
    return Decoders(design, depth, SIZE, seeds, "cpu")


@pytest.mark.parametrize("design", DESIGNS, ids=lambda each: f"{each.norm} {each.name}")
def test_decoders_of_a_group_do_not_know_of_each_other(design: Design) -> None:
    together = train(design, 2, SIZE, [0, 1], [1e-3, 1e-2], 4, "cpu", points=2)
    alone = train(design, 2, SIZE, [1], [1e-2], 4, "cpu", points=2)
    assert together["final"][1] == pytest.approx(
        alone["final"][0], rel=1e-4
    )  # products of other shapes round otherwise
    assert together["final"][0] != pytest.approx(together["final"][1], rel=1e-4)


@pytest.mark.parametrize("design", DESIGNS, ids=lambda each: f"{each.norm} {each.name}")
def test_letters_do_not_look_ahead(design: Design) -> None:
    decoders = build(design, [0])
    text = text_for([0], 2, SIZE, "cpu", purpose=1)[..., :-1]
    changed = text.clone()
    changed[..., 10] = (changed[..., 10] + 1) % 32
    before, after = decoders.logits(text), decoders.logits(changed)
    assert torch.allclose(before[:, :, :10], after[:, :, :10], atol=1e-6)
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:], atol=1e-6)


def test_every_arm_runs_in_the_precision_of_a_gpu() -> None:
    text = text_for([0, 1], 2, SIZE, "cpu", purpose=1)
    for design in DESIGNS:
        decoders = build(design, [0, 1])
        single = decoders.losses(text)
        decoders.dtype = torch.bfloat16
        decoders.turns = tuple(each.bfloat16() for each in decoders.turns)
        half = decoders.losses(text)
        (gradient,) = torch.autograd.grad(half.sum(), decoders.weights)
        assert torch.allclose(single, half, atol=0.05)
        assert gradient.isfinite().all()
        assert gradient.abs().sum(1).min() > 0


def test_shaped_attention_starts_as_the_identity() -> None:
    shaped = Design("shaped", (1.0, 1.0, 1.0), learnt=True, beta=0.0)
    skip = Design("value skip", (1.0, 0.0, 0.0), learnt=True)
    text = text_for([0], 2, SIZE, "cpu", purpose=1)
    decoders = [build(each, [0]) for each in (shaped, skip)]
    one, other = (each.logits(text[..., :-1]) for each in decoders)
    assert torch.allclose(one, other, atol=1e-5)


def test_gap_removed_is_attention_less_the_running_mean() -> None:
    """The output of one layer, with explicit matrices in double precision."""
    kept, removed = (build(Design("", (0.0, 1.0, gamma)), [0], depth=1) for gamma in (0.0, 1.0))
    signal = torch.randn(1, 2, SIZE.context, SIZE.width, generator=torch.Generator().manual_seed(0))
    parts = kept.parts()
    apart = kept._attend(signal, parts, 0) - removed._attend(signal, parts, 0)
    value = signal.double() @ parts["in 0"][0, :, 2 * SIZE.width :].double()
    mean = value.cumsum(-2) / torch.arange(1, SIZE.context + 1)[:, None]
    assert torch.allclose(apart.double(), mean @ parts["out 0"][0].double(), atol=1e-5)


@pytest.mark.parametrize("coefficients", [(0.0, 1.0, 0.0), (0.0, 1.0, 1.0)])
def test_scaled_values_keep_the_signal(coefficients: tuple[float, float, float]) -> None:
    decoders, text = build(Design("", coefficients), [0, 1], depth=4), text_for([0, 1], 8, SIZE, "cpu", purpose=1)
    decoders.scale_values(text)
    found = []
    decoders.logits(text[..., :-1], lambda _, branch: found.append(branch.square().flatten(1).mean(1)) or branch)
    assert torch.allclose(torch.stack(found), torch.ones(4, 2), rtol=1e-3)


def test_cosine_is_that_of_all_pairs() -> None:
    """Against the explicit mean; and tokens of a deep stack with its gap are alike, without it they are not."""
    text = text_for([0, 1], 2, SIZE, "cpu", purpose=1)
    for gamma in (0.0, 1.0):
        decoders = build(Design("", (0.0, 1.0, gamma)), [0, 1], depth=4)
        decoders.scale_values(text)
        found = decoders.cosine(text)
        signal = decoders.signal(text[..., :-1], decoders.parts()).detach()[:, :, 1:]
        units = signal.double() / signal.double().norm(dim=-1, keepdim=True)  # no number for tokens of size zero
        upper = torch.ones(units.shape[2], units.shape[2]).triu(1).bool()
        assert torch.allclose(found, (units @ units.mT)[..., upper].nanmean(-1).mean(1), atol=1e-6)
        assert (found > 0.8).all() if gamma == 0 else (found.abs() < 0.5).all()


def test_adam_is_that_of_torch() -> None:
    """Rows with rates of their own, clipped apart, beside torch.optim.AdamW on each."""
    start, rates, steps = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), [1e-2, 3e-1], 12
    gradients = 3 * torch.randn(steps, 2, 5, generator=torch.Generator().manual_seed(1))
    ours = start.clone()
    adam = Adam(ours, rates, steps, warm_up=True)
    for each in gradients:
        adam.step(each)
    warm = 1
    for row, rate in enumerate(rates):
        weights = torch.nn.Parameter(start[row].clone())
        theirs = torch.optim.AdamW([weights], betas=MOMENTS, weight_decay=DECAY)
        for step, each in enumerate(gradients[:, row], start=1):
            share = (step - warm) / (steps - warm)
            theirs.param_groups[0]["lr"] = rate * (LAST + (1 - LAST) * (1 + math.cos(math.pi * share)) / 2)
            weights.grad = each.clone()
            torch.nn.utils.clip_grad_norm_([weights], CLIP)
            theirs.step()
        assert torch.allclose(ours[row], weights, rtol=1e-4)


def test_a_gradient_that_is_no_number_moves_nothing() -> None:
    weights = torch.ones(2, 3)
    Adam(weights, [0.1, 0.1], 5, warm_up=False).step(torch.tensor([[1.0, 1.0, 1.0], [1.0, math.nan, 1.0]]))
    assert (weights[0] < 0.95).all()
    assert torch.allclose(weights[1], torch.full((3,), 1 - 0.1 * DECAY))


def test_language_has_its_entropies_and_repeats() -> None:
    text = sequences(4000, 48, torch.Generator().manual_seed(0)).numpy()
    first = text[:, :6]  # no segment is shorter
    chain = transitions()
    loss = -np.log(chain[first[:, :-1], first[:, 1:]])
    # the first letter is uniform, and its followers soon as the chain has them
    assert loss[:, 2:].mean() == pytest.approx(levels(48)["pairs"], abs=5 * loss[:, 2:].std() / 120)
    for row in text[:50]:
        assert any((row[length:] == row[:-length]).all() for length in range(6, 19))


def fake_numbers() -> dict[str, object]:
    """A run's numbers: one arm diverged, one failed, and without the gap post-norm is 0.5 lower."""
    runs = []
    for kind in trainability_gpu.KINDS:
        for design in trainability_gpu.arms(kind, 2, SIZE):
            lower = 0.5 if kind == "post-norm" and design.name == "gap removed" else 0.0
            final = [3.0 - lower + 0.01 * seed for seed in range(3)]
            curve = [[step, [each + 1 / step for each in final]] for step in range(1, 11)]
            runs.append({"kind": kind, "depth": 2, "arm": design.name, "rate": 1e-3, "step_seconds": 0.01, "steps": 10,
                         "final": final, "curve": curve, "cosine": [0.5] * 3, "gradient": [1.0] * 3})  # fmt: skip
    runs[0] |= {"final": [None, 3.0, 3.0], "curve": [[1, [None, 3.0, 3.0]], [10, [None, 3.0, 3.0]]]}
    del runs[3]["final"], runs[3]["curve"]
    runs[3]["problem"] = "RuntimeError: out of memory"
    about = {"device": "nothing", "date": "2026-01-01", "torch": "2", "size": {"width": 16, "heads": 2, "context": 16,
             "batch": 2}, "levels": levels(16), "steps": 10, "grid_steps": 5, "grid_seed": 100, "seeds": [0, 1, 2],
             "rates": [1e-3, 1e-2], "seconds": 1.0}  # fmt: skip
    return json.loads(json.dumps(about | {"runs": runs}, allow_nan=False))


def test_page_says_what_the_numbers_say() -> None:
    numbers = fake_numbers()
    text = trainability_page.page(numbers)
    assert "* post-norm, 2 layers: without the gap -0.500 ± 0.000 nats a letter (lower)" in text
    assert "* plain, 2 layers: no comparison, because not every seed of gap kept ended with a number" in text
    assert "* pre-norm, 2 layers: without the gap +0.000 ± 0.000 nats a letter (undecided)" in text
    assert "out of memory" in text
    assert "diverged" in text


def test_loss_at_equal_time_is_that_of_fewer_steps_for_a_slower_arm() -> None:
    run = {"step_seconds": 0.01, "curve": [[step, [10.0 - step] * 3] for step in range(1, 11)]}
    assert trainability_page.loss_after(run, 0.05) == pytest.approx(5.0)
    assert trainability_page.loss_after(run | {"step_seconds": 0.02}, 0.05) == pytest.approx(7.5)


def test_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trainability_page.figure(fake_numbers()).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_steps_fit_into_the_time() -> None:
    runs = [trainability_gpu.Run("plain", depth, replace(DESIGNS[0]), (0,), (1e-3,)) for depth in (8, 24)]
    solo = {run.name: run.depth / 1024 for run in runs}
    assert trainability_gpu.steps_that_fit(runs, solo, 32.0, 1.0, 10_000) == 1024
    assert trainability_gpu.steps_that_fit(runs, solo, 32.0, 2.0, 1500) == 1500


@pytest.mark.slow
def test_study_from_workers_to_page(tmp_path: Path) -> None:
    out = tmp_path / "toy.json"
    numbers = trainability_gpu.main(
        ["--toy", "--seconds", "150", "--workers", "2", "--depths", "2", "--steps", "4", "--rates", "1e-3", "1e-2",
         "--kinds", "plain", "--json", str(out), "--page", str(tmp_path / "page.md")]
    )  # fmt: skip
    assert json.loads(out.read_text()) == numbers
    assert [run["steps"] for run in numbers["runs"]] == [4] * 7
    assert len(out.with_suffix(".lines").read_text().splitlines()) == 14
    assert "Plain, 2 layers" in (tmp_path / "page.md").read_text()
