"""The parts of the studies that train: the optimiser, the networks, the plateau, the text."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bulkedge.lab.studies.propagation import (  # noqa: E402
    Adam,
    Architecture,
    best,
    draw_weights,
    forward,
    isometric,
    reference_losses,
    train,
)
from bulkedge.lab.studies.propagation.plateau import _crossing, _power  # noqa: E402
from bulkedge.lab.studies.propagation.real_task import SHAPES, PropagationRealTask, _decoder, _weights, manual  # noqa: E402
from bulkedge.lab.studies.propagation.trainability import powers  # noqa: E402
from bulkedge.lab.studies.propagation.training import PropagationTraining  # noqa: E402
from bulkedge.propagation import Trainability  # noqa: E402


def test_each_row_has_its_own_adam():
    torch.manual_seed(0)
    start, target, rates = torch.randn(3, 5), torch.randn(5), torch.tensor([0.001, 0.01, 0.1])
    weights = start.clone().requires_grad_()
    adam = Adam(weights, rates)
    rows = [row.clone().requires_grad_() for row in start]
    optimisers = [torch.optim.Adam([row], lr=float(rate)) for row, rate in zip(rows, rates, strict=True)]
    for _ in range(30):
        adam.step(torch.autograd.grad(((weights - target) ** 4).sum(), weights)[0])
        for row, optimiser in zip(rows, optimisers, strict=True):
            optimiser.zero_grad()
            ((row - target) ** 4).sum().backward()
            optimiser.step()
    torch.testing.assert_close(weights, torch.stack(rows), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mean", [0.0, 0.25])
def test_a_layer(mean):
    rng = np.random.default_rng(0)
    x, scores, values = rng.standard_normal((3, 4, 4))
    weights = {"scores": scores, "values": values, "outputs": np.eye(4)}
    tensors = {name: torch.tensor(each)[None, None] for name, each in weights.items()}
    found = forward(torch.tensor(x)[None, None], tensors, "skip", torch.full((1, 1, 1, 1), mean))[0, 0]
    attention = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, x + (attention - mean) @ x @ values, atol=1e-7)


def test_nothing_is_left_of_uniform_attention_without_its_gap():
    """Xavier's limit (Proposition 1): the output is zero, and the loss that of an output of zero."""
    rng = np.random.default_rng(0)
    inputs = isometric(2, 3, 8, rng)
    weights = {name: torch.tensor(each)[None] for name, each in draw_weights(Architecture("xavier"), 8, rng).items()}
    weights["keys"] *= 0
    found = forward(torch.tensor(inputs), weights, "plain", torch.full((1, 1, 1, 1), 1 / 8))
    assert found.abs().max() < 1e-15
    assert forward(torch.tensor(inputs), weights, "plain", torch.zeros(1, 1, 1, 1)).abs().max() > 0.1
    np.testing.assert_allclose(((inputs > 0) ** 2).mean(axis=(1, 2, 3)), reference_losses(inputs)["zero"][1])


def test_networks_learn_their_own_inputs_from_the_same_start():
    """Learning rates and gaps start alike but for the gap; networks trained alone and together go the same way."""
    inputs = isometric(3, 2, 6, np.random.default_rng(0))
    network = Architecture("key-query", "skip", 2)
    losses = train(inputs, network, (0.01, 0.1), 5, np.random.default_rng(1))
    assert losses.shape == (2, 2, 3, 6)
    np.testing.assert_allclose(losses[:, 0, :, 0], losses[:, 1, :, 0], rtol=1e-5)
    alone = train(inputs[:1], network, (0.1,), 5, np.random.default_rng(1))
    np.testing.assert_allclose(alone[:, 0, 0], losses[:, 1, 0], rtol=1e-3)


def test_the_scale_of_values_is_all_that_an_upscaled_skip_changes():
    fair, upscaled = (
        draw_weights(Architecture("key-query", "skip", 2, scale), 9, np.random.default_rng(5)) for scale in (1.0, 1 / 3)
    )
    np.testing.assert_allclose(fair.pop("values"), 3 * upscaled.pop("values"))
    for name, each in fair.items():
        np.testing.assert_array_equal(each, upscaled[name])


def test_the_plateau_of_equal_tokens():
    inputs = isometric(2, 3, 8, np.random.default_rng(0))
    rng, target = np.random.default_rng(1), (inputs > 0).astype(float)
    equal, least = target.mean(axis=2, keepdims=True), reference_losses(inputs)["collapsed"][1]
    np.testing.assert_allclose(((equal - target) ** 2).mean(axis=(1, 2, 3)), least)
    for _ in range(20):
        other = equal + 0.1 * rng.standard_normal((2, 3, 1, 8))
        assert (((other - target) ** 2).mean(axis=(1, 2, 3)) > least).all()


def test_a_rate_that_diverges_is_not_the_best():
    data = PropagationTraining(tokens=8, samples=3, steps=10, repeats=2, rates=(0.01, 0.03)).simulate(0)
    data["loss"].loc[{"rate": 0.01}] = np.nan
    assert np.isfinite(best(data)).all()


def test_power_of_the_first_output():
    """Removing the gap takes off 1/T; scores of deviation beta leave beta**2/T of nearly uniform attention."""
    for attention in ("key-query", "xavier"):
        assert _power(attention, "kept", 24) - _power(attention, "removed", 24) == pytest.approx(1 / 24)
    assert _power("xavier", "removed", 200) == pytest.approx(200**-3, rel=0.02)
    rng = np.random.default_rng(0)
    scores = np.einsum("nik,njk->nij", *rng.standard_normal((2, 4000, 6, 6))) / 6**0.5
    weights = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    draws = (weights**2).sum(axis=2).mean(axis=1)
    assert _power("key-query", "kept", 6) == pytest.approx(draws.mean(), abs=5 * draws.std() / 4000**0.5)


def test_crossing():
    assert _crossing(np.array([3.0, 1.0, -1.0, -2.0])) == pytest.approx(1.5)
    assert _crossing(np.array([3.0, 1.0, 2.0])) == 2
    assert _crossing(np.array([0.5, -0.5, 1.0, -1.0])) == 1, "at least a step: a logarithm is taken"
    assert _crossing(np.array([-1.0, -2.0])) == 1


@pytest.mark.parametrize("skip", [0.0, 0.6, 0.9])
def test_powers_make_the_share(skip):
    for depth in (1, 5, 20):
        design = Trainability(30, depth, skip)
        apart, common = powers(design, design.passed(1.5))
        assert apart / (apart + common) == pytest.approx(design.distinct_share(1.5), rel=1e-12)


def test_no_kind_of_decoder_sees_the_future():
    generator = torch.Generator().manual_seed(0)
    weights = _weights(16, 2, 12, 20, generator)
    codes = torch.randint(0, 20, (2, 12), generator=generator)
    other = codes.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 20
    for shape in SHAPES.values():
        one, two = (_decoder(each, weights, shape)[0] for each in (codes, other))
        torch.testing.assert_close(one[:, :7], two[:, :7], atol=1e-5, rtol=0)
        assert (one[:, 7:] - two[:, 7:]).abs().max() > 0.1


def test_the_text():
    text = manual().tobytes().decode()
    assert len(text) > 200_000
    assert "assignment" in text
    assert len(PropagationRealTask(steps=5, context=8, head_dim=2, seeds=2).simulate(0).attrs["text"]) == 64
