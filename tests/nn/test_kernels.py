"""The kernels of a GPU against explicit sums in double precision and against torch's path, and how they are wired."""

import types

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import bulkedge as be  # noqa: E402
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


def running(  # noqa: PLR0913
    target, source, *, keep=1.0, own=0.0, scale=1.0, reach=fused.CAUSAL, adjoint=False, heads=None
):
    """``keep target + own source - scale C source`` in torch."""
    heads = target.shape[1] if heads is None else heads
    counts = torch.arange(1, source.shape[-2] + 1, device=source.device).clamp(max=reach)[:, None]
    terms = (source / counts).flip(-2) if adjoint else source
    sums = terms.cumsum(-2)
    sums = sums - torch.nn.functional.pad(sums, (0, 0, reach, 0))[..., :-reach, :] if reach < len(counts) else sums
    if adjoint:
        sums, plain = (each.unflatten(1, (heads, -1)).sum(2) for each in (sums.flip(-2), source))
    else:
        sums, plain = (each.repeat_interleave(heads // source.shape[1], 1) for each in (sums / counts, source))
    less = own * plain - scale * sums
    return less if target is None else keep * target + less


def remove_mean(value, weights, adjoint):
    return fused.less_mean(None, value, weights, reach=fused.ALL, own=1.0, adjoint=adjoint)


def centred(value, weights, adjoint):
    weights = torch.full_like(value[..., :1], 1 / value.shape[-2]) if weights is None else weights[..., None]
    return value - (weights * value.sum(-2, keepdim=True) if adjoint else (weights * value).sum(-2, keepdim=True))


def weights(batch, heads, tokens):
    drawn = normal(batch, heads, tokens, seed=7, dtype=torch.float32).abs()
    return drawn / drawn.sum(-1, keepdim=True)


def check_running(target, source, adjoint):
    window = {"reach": min(200, max(1, source.shape[2] // 3))}
    for coefficients in ({"scale": 0.7}, {"keep": 0.8, "own": -0.5, "scale": 0.3}, window):
        found = fused.less_mean(target, source, **coefficients, adjoint=adjoint)
        assert_rounded_once(found, running(target.double(), source.double(), **coefficients, adjoint=adjoint))
    options = {"own": -0.5, "scale": 0.3, "adjoint": adjoint, "heads": target.shape[1]}
    assert_rounded_once(fused.less_mean(None, source, **options), running(None, source.double(), **options))


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
        assert_rounded_once(remove_mean(target, given, adjoint), reference)


@gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_centred(tokens, dtype):
    value = normal(2, 3, tokens, 64, dtype=dtype)
    assert_rounded_once(remove_mean(value, None, adjoint=False), centred(value.double(), None, adjoint=False))


@gpu
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(("tokens", "dim"), [(65, 32), (1000, 80), (65, 128), (65, 5), (1000, 256)])
def test_centred_by_weights(tokens, dim, adjoint):
    value, given = normal(2, 3, tokens, dim), weights(2, 3, tokens)
    reference = centred(value.double(), given.double(), adjoint)
    # plain sums of the adjoint are of order 100, which weights of order 1/tokens bring back
    assert_rounded_once(remove_mean(value, given, adjoint), reference)


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
        expected = fused.less_mean(target, source, adjoint=adjoint)
        for one, other in ((LAYOUTS[layout](target), source), (target, LAYOUTS[layout](source))):
            assert torch.equal(fused.less_mean(one, other, adjoint=adjoint), expected)
    expected = remove_mean(target, None, adjoint=False)
    assert torch.equal(remove_mean(LAYOUTS[layout](target), None, adjoint=False), expected)
    one_gradient = torch.ones(1, 1, 1, 1, device="cuda", dtype=target.dtype).expand_as(target)  # as a sum sends back
    check_running(target, one_gradient, adjoint=True)


WINDOW = torch.ones(333, 333, dtype=torch.bool).tril().triu(-99)
WINDOW.bulkedge_reach = 100  # as patched models write it
CASES = {
    "full": {},
    "window, shared heads": {"attn_mask": WINDOW, "enable_gqa": True},
    "causal": {"is_causal": True},
    "causal, shared heads": {"is_causal": True, "enable_gqa": True},
    "padding": {"attn_mask": (torch.arange(333) < torch.tensor([[100], [333]]))[:, None, None, :]},
    "padding, shared heads": {"attn_mask": (torch.arange(333) < 200).expand(333, -1), "enable_gqa": True},
}


def attention_inputs(case, dtype=torch.bfloat16):
    shared = "shared" in case
    made = [normal(2, heads, 333, 64, seed=heads, dtype=dtype) for heads in (4, *2 * [2 if shared else 4])]
    options = {key: each.cuda() if isinstance(each, torch.Tensor) else each for key, each in CASES[case].items()}
    if "window" in case:
        options["attn_mask"].bulkedge_reach = WINDOW.bulkedge_reach
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


@pytest.fixture
def on_a_processor(monkeypatch):
    """The wiring needs no GPU: with torch in the place of the kernels, in double precision."""
    calls = []

    def kernel(launch, target, source, weights, *rest):
        assert weights is None
        options = dict(zip(("keep", "own", "scale", "reach", "adjoint", "heads"), rest, strict=True))
        calls.append((launch is fused._launch, target is not None, options["adjoint"]))
        return fused._allocate(target, source, options["heads"]).copy_(running(target, source, **options))

    monkeypatch.setattr(fused, "takes", lambda value: value.dim() == 4)
    monkeypatch.setattr(fused, "_run", kernel)
    return calls


def doubles(heads=4, shared=4, tokens=9):
    sizes = enumerate((heads, shared, shared))
    made = [normal(2, tokens, each, 8, seed=seed, dtype=torch.double, device="cpu") for seed, each in sizes]
    return [each.transpose(1, 2).requires_grad_() for each in made]


def explicit(q, k, v, coefficients, window=None):
    alpha, beta, gamma = coefficients
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=q.dtype, device=q.device).tril()
    seen = seen if window is None else seen.triu(1 - window)
    attention = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(seen == 0, -torch.inf).softmax(-1)
    return alpha * v + (beta * attention - gamma * seen / seen.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("coefficients", [(0.0, 1.0, 1.0), (0.3, 0.8, 0.5), (1.0, -2.0, 0.1)])
@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_a_pass_each_way(on_a_processor, coefficients, shared, compiled, window):
    """Output and gradients to rounding; the way back reads the gradient alone."""
    torch._dynamo.reset()  # which gives up on what it compiled anew eight times
    made = doubles(shared=shared)
    options = dict(zip(("alpha", "beta", "gamma"), coefficients, strict=True))
    options |= {"enable_gqa": shared != 4}
    options |= {"is_causal": True} if window is None else {"attn_mask": be.Mask.window(9, window)}
    attend = torch.compile(shaped_attention, fullgraph=True, backend="aot_eager") if compiled else shaped_attention
    repeated = [made[0], *(each.repeat_interleave(4 // shared, 1) for each in made[1:])]
    found, expected = attend(*made, **options), explicit(*repeated, coefficients, window)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    sent = normal(*found.shape, seed=3, dtype=torch.double, device="cpu")
    gradients = [torch.autograd.grad(each, made, sent) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-13, rtol=0)
    assert set(on_a_processor) == {(not compiled, True, False), (not compiled, False, True)}


@pytest.mark.parametrize("adjoint", [False, True])
def test_the_operator_keeps_the_rules_of_torch(on_a_processor, adjoint):
    """Schema, fake tensors, autograd and compilation."""
    assert not on_a_processor
    target, source, _ = (each.detach().requires_grad_() for each in doubles())
    for given, reach in ((target, 3), (None, fused.CAUSAL)):
        torch.library.opcheck(fused._operator, (given, source, None, 0.8, 0.3, 0.5, reach, adjoint, 4, fused.BUILD))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
def test_a_compiled_graph_is_of_its_kernels(on_a_processor):
    """Torch keeps graphs on disk and would run the kernels of the version before: the arguments say which they are."""
    assert not on_a_processor
    graphs = []

    def compiler(module, _):
        graphs.append(module.code)
        return module.forward

    target, source, _ = (each.detach() for each in doubles())
    torch.compile(fused.less_mean, backend=compiler, fullgraph=True)(target, source)
    assert [graph.count(f"'{fused.BUILD}'") for graph in graphs] == [1]


def test_second_derivatives_without_a_gpu(on_a_processor):
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(
            lambda *each: shaped_attention(*each, is_causal=True, alpha=0.3, beta=0.8), doubles(1, 1, 4)
        )
    assert on_a_processor


def test_without_triton_a_gpu_is_told_once(monkeypatch):
    monkeypatch.setattr(fused, "TRITON", False)
    fused._say_what_is_missing.cache_clear()
    value = types.SimpleNamespace(is_cuda=True)
    with pytest.warns(UserWarning, match="Triton is not installed: torch computes the means"):
        assert not fused.takes(value)
    assert not fused.takes(value)


def test_without_a_gpu_nothing_is_fused():
    assert not fused.takes(normal(1, 2, 3, 4, device="cpu"))
