"""The parts of the studies that train: the optimiser, the networks, the plateau, the text."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bulkedge.studies.propagation.real_task import SHAPES, RealTask, _decoder, _weights, manual  # noqa: E402
from bulkedge.studies.propagation.training import Adam, Training, _network, best  # noqa: E402


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
    found = _network(torch.tensor(x)[None], tensors, "skip", torch.full((1, 1, 1, 1), mean))[0, 0]
    attention = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, x + (attention - mean) @ x @ values, atol=1e-7)


def test_the_plateau_is_the_least_loss_of_equal_tokens():
    study = Training(tokens=8, samples=3, steps=10)
    data = study.simulate(0)
    rng = np.random.default_rng(0)
    inputs = np.stack([np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(3)])
    target = (inputs > 0).astype(float)
    equal = target.mean(axis=1, keepdims=True)
    assert float(data.collapsed) == pytest.approx(((equal - target) ** 2).mean())
    for _ in range(20):
        other = equal + 0.1 * rng.standard_normal((3, 1, 8))
        assert ((other - target) ** 2).mean() > float(data.collapsed)


def test_a_rate_that_diverges_is_not_the_best():
    data = Training(tokens=8, samples=3, steps=10).simulate(0)
    data["loss"].loc[{"rate": 0.01}] = np.nan
    assert np.isfinite(best(data)).all()


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
    assert len(RealTask(steps=5, context=8, head_dim=2, seeds=2).simulate(0).attrs["text"]) == 64
