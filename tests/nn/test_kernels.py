"""The kernels of a GPU against explicit sums in double precision and against torch's path, and how they are wired."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from bulkedge.nn import fused  # noqa: E402
from bulkedge.nn.attention import gap_free_attention, shaped_attention  # noqa: E402

gpu = pytest.mark.skipif(not (torch.cuda.is_available() and fused.TRITON), reason="the kernels need CUDA and Triton")
TYPES = [torch.bfloat16, torch.float16, torch.float32]
TOKENS = [1, 2, 63, 64, 65, 1000, 32768]
SUMS = 2e-6
"""Absolute error of sums in single precision: they are of order four, where numbers are 5e-7 apart."""


def normal(*shape, seed=0, dtype=torch.bfloat16, device="cuda"):
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device).to(dtype)


def assert_rounded_once(found, reference):
    """Sums in single precision, and one rounding to the type of the result."""
    assert found.dtype in TYPES
    error = (found.double() - reference).abs() - reference.abs() * torch.finfo(found.dtype).eps / 2
    assert error.max() <= SUMS


def running(target, source, scale, adjoint):
    """``target - scale C source`` in torch, with all that autograd needs."""
    counts = torch.arange(1, target.shape[-2] + 1, device=target.device)[:, None]
    if adjoint:
        sums = (source / counts).flip(-2).cumsum(-2).flip(-2)
        return target - scale * sums.unflatten(1, (target.shape[1], -1)).sum(2)
    return target - scale * (source.cumsum(-2) / counts).repeat_interleave(target.shape[1] // source.shape[1], 1)


def centred(value, weights, adjoint):
    weights = torch.full_like(value[..., :1], 1 / value.shape[-2]) if weights is None else weights[..., None]
    return value - (weights * value.sum(-2, keepdim=True) if adjoint else (weights * value).sum(-2, keepdim=True))


def weights(batch, heads, tokens):
    drawn = normal(batch, heads, tokens, seed=7, dtype=torch.float32).abs()
    return drawn / drawn.sum(-1, keepdim=True)


def check_running(target, source, adjoint):
    found = fused.less_running_mean(target, source, 0.7, adjoint)
    assert_rounded_once(found, running(target.double(), source.double(), 0.7, adjoint))


@gpu
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_less_running_mean(tokens, dtype, adjoint):
    target, source = (normal(2, 3, tokens, 64, seed=seed, dtype=dtype) for seed in (0, 1))
    check_running(target, source, adjoint)


@gpu
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(("tokens", "dim"), [(65, 32), (1000, 80), (65, 128), (65, 5), (1000, 256)])
def test_less_running_mean_of_shared_heads(tokens, dim, adjoint):
    few, many = (normal(2, heads, tokens, dim, seed=heads) for heads in (2, 8))
    check_running(*((few, many) if adjoint else (many, few)), adjoint)


@gpu
@pytest.mark.parametrize("adjoint", [False, True])
def test_heads_that_fill_the_gpu(adjoint):
    """Which are not cut."""
    target, source = (normal(fused.PROGRAMS, 1, 100, 64, seed=seed) for seed in (0, 1))
    check_running(target, source, adjoint)
    for given in (None, weights(fused.PROGRAMS, 1, 100)):
        reference = centred(target.double(), given, adjoint)
        assert_rounded_once(fused.centred(target, given, adjoint), reference)


@gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_centred(tokens, dtype):
    value = normal(2, 3, tokens, 64, dtype=dtype)
    assert_rounded_once(fused.centred(value, None, adjoint=False), centred(value.double(), None, adjoint=False))


@gpu
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(("tokens", "dim"), [(65, 32), (1000, 80), (65, 128), (65, 5), (1000, 256)])
def test_centred_by_weights(tokens, dim, adjoint):
    value, given = normal(2, 3, tokens, dim), weights(2, 3, tokens)
    reference = centred(value.double(), given.double(), adjoint)
    # plain sums of the adjoint are of order 100, which weights of order 1/tokens bring back
    assert_rounded_once(fused.centred(value, given, adjoint), reference)


LAYOUTS = {
    "heads inside": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    "tokens inside": lambda tensor: tensor.mT.contiguous().mT,
    "every other": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
    "part of more": lambda tensor: torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]],
}


@gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    target, source = (normal(2, 3, 333, 64, seed=seed) for seed in (0, 1))
    for adjoint in (False, True):
        expected = fused.less_running_mean(target, source, 1.0, adjoint)
        for one, other in ((LAYOUTS[layout](target), source), (target, LAYOUTS[layout](source))):
            assert torch.equal(fused.less_running_mean(one, other, 1.0, adjoint), expected)
    expected = fused.centred(target, None, adjoint=False)
    assert torch.equal(fused.centred(LAYOUTS[layout](target), None, adjoint=False), expected)
    one_gradient = torch.ones(1, 1, 1, 1, device="cuda", dtype=target.dtype).expand_as(target)  # as a sum sends back
    check_running(target, one_gradient, adjoint=True)


CASES = {
    "full": {},
    "causal": {"is_causal": True},
    "causal, shared heads": {"is_causal": True, "enable_gqa": True},
    "padding": {"attn_mask": (torch.arange(333) < torch.tensor([[100], [333]]))[:, None, None, :]},
    "padding, shared heads": {"attn_mask": (torch.arange(333) < 200).expand(333, -1), "enable_gqa": True},
}


def attention_inputs(case, dtype=torch.bfloat16):
    shared = "shared" in case
    made = [normal(2, heads, 333, 64, seed=heads, dtype=dtype) for heads in (4, *2 * [2 if shared else 4])]
    options = {key: each.cuda() if isinstance(each, torch.Tensor) else each for key, each in CASES[case].items()}
    return [each.requires_grad_() for each in made], options


@gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_attention_is_that_of_torch(case, dtype, monkeypatch):
    made, options = attention_inputs(case, dtype)
    sent = normal(2, 4, 333, 64, seed=5, dtype=dtype)
    found = gap_free_attention(*made, **options)
    gradients = torch.autograd.grad(found, made, sent)
    monkeypatch.setattr(fused, "takes", lambda _: False)
    expected = gap_free_attention(*made, **options)
    # three roundings of numbers below eight, and in single precision those of the sums
    rounding = 3 * 8 * torch.finfo(dtype).eps / 2
    torch.testing.assert_close(found, expected, atol=rounding + SUMS, rtol=0)
    for one, other in zip(gradients, torch.autograd.grad(expected, made, sent), strict=True):
        size = max(8, float(other.abs().max()))
        torch.testing.assert_close(one, other, atol=3 * size * torch.finfo(dtype).eps / 2 + 2 * SUMS, rtol=0)


@gpu
@pytest.mark.parametrize("options", [{"is_causal": True}, {}], ids=["causal", "full"])
def test_shaped_attention_is_that_of_torch(options, monkeypatch):
    made, _ = attention_inputs("full", torch.float32)
    coefficients = {"alpha": 0.3, "beta": 0.8, "gamma": 0.5}
    found = shaped_attention(*made, **options, **coefficients)
    monkeypatch.setattr(fused, "takes", lambda _: False)
    torch.testing.assert_close(found, shaped_attention(*made, **options, **coefficients), atol=SUMS, rtol=0)


@gpu
@pytest.mark.parametrize("case", ["full", "causal", "padding", "causal, shared heads"])
def test_second_derivatives(case, monkeypatch):
    """Of the map itself, since fused attention has none: queries and keys shape it, values pass it."""
    made, options = attention_inputs(case, torch.float32)

    def second():
        with sdpa_kernel(SDPBackend.MATH):
            output = gap_free_attention(*(each[..., :40, :] for each in made), **options)
            firsts = torch.autograd.grad(output.square().sum(), made, create_graph=True)
            return torch.autograd.grad(sum(each.square().sum() for each in firsts), made)

    options = {key: each[..., :40] if key == "attn_mask" else each for key, each in options.items()}
    found = second()
    monkeypatch.setattr(fused, "takes", lambda _: False)
    for one, other in zip(found, second(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=0)


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
@pytest.mark.parametrize("case", ["full", "causal", "padding", "causal, shared heads"])
def test_compiled_in_one_graph(case):
    made, options = attention_inputs(case)
    compiled = torch.compile(gap_free_attention, fullgraph=True)
    one, other = compiled(*made, **options), gap_free_attention(*made, **options)
    torch.testing.assert_close(one, other, atol=2.0**-6, rtol=0)
    sent = normal(2, 4, 333, 64, seed=5)
    gradients = (torch.autograd.grad(each, made, sent) for each in (one, other))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=2.0**-7 * max(1.0, float(b.abs().max())), rtol=0)


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("case", ["full", "causal"])
def test_cuda_graphs_and_no_waiting(case):
    made, options = attention_inputs(case)
    with torch.no_grad():
        gap_free_attention(*made, **options)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            gap_free_attention(*made, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = gap_free_attention(*made, **options)
        made[2].copy_(normal(2, 4, 333, 64, seed=11))
        graph.replay()
        torch.testing.assert_close(output, gap_free_attention(*made, **options), atol=0, rtol=0)


@gpu
def test_autocast():
    made, _ = attention_inputs("causal", torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        output = gap_free_attention(*made, is_causal=True)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), gap_free_attention(*made, is_causal=True), atol=3 * 2.0**-6, rtol=0)
    assert torch.autograd.grad(output.sum(), made[2])[0].dtype == torch.float32


@gpu
def test_what_the_kernels_do_not_take():
    value = normal(2, 3, 40, 16, dtype=torch.float32)
    for other in (value.double(), value[0], value.cpu(), value[:0], normal(1, 1, 4, 512)):
        assert not fused.takes(other)
        assert gap_free_attention(other, other, other, is_causal=True).shape == other.shape


def test_the_gradient_comes_back_in_one_pass(monkeypatch):
    """The wiring needs no GPU: with torch in the place of the kernel, in double precision."""
    calls = []

    def kernel(target, source, scale, adjoint):
        calls.append(adjoint)
        return running(target, source, scale, adjoint)

    q, k, v = (normal(2, heads, 9, 4, seed=heads, dtype=torch.double, device="cpu") for heads in (4, 2, 2))
    made = [each.requires_grad_() for each in (q, k, v)]
    options = {"is_causal": True, "enable_gqa": True, "beta": 0.8, "gamma": 0.5}
    expected = shaped_attention(*made, **options)
    monkeypatch.setattr(fused, "takes", lambda _: True)
    monkeypatch.setattr(fused, "_subtract", kernel)
    found = shaped_attention(*made, **options)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    sent = normal(*found.shape, seed=3, dtype=torch.double, device="cpu")
    for one, other in zip(
        torch.autograd.grad(found, made, sent), torch.autograd.grad(expected, made, sent), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-13, rtol=0)
    assert calls == [False, True]
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda *each: shaped_attention(*each, **options), made)


def test_without_a_gpu_nothing_is_fused():
    assert not fused.takes(normal(1, 2, 3, 4, device="cpu"))
