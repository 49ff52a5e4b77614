"""Attention without its gap in C++ and CUDA, against an explicit matrix in double precision; and when it is used.

Without a GPU the node is built with its kernels compiled for a processor (``stand_in``): ``pytest -m slow
tests/nn/test_native.py``.
"""

import copy
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from bulkedge.nn import fused, native  # noqa: E402
from bulkedge.nn.attention import gap_free_attention, shaped_attention  # noqa: E402
from bulkedge.nn.modules import GapFreeAttention  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
gpu = pytest.mark.skipif(not GPU, reason="what is tested is the GPU's own")
STAND_IN = Path(__file__).with_name("stand_in")


def node(test):
    """A test of the node: on a GPU, or with the stand-in, which takes half a minute to build."""
    return test if GPU else pytest.mark.slow(test)


@pytest.fixture(scope="module")
def built_once(tmp_path_factory, request):
    """The library, or its stand-in."""
    if GPU:
        return native.build_kernels()
    if not all(map(shutil.which, ("ninja", "c++"))):
        pytest.skip("ninja or a C++ compiler is missing")
    from torch.utils import cpp_extension

    folder, means = tmp_path_factory.mktemp("stand_in"), request.getfixturevalue("means")
    cpp_extension.load(
        "stand_in",
        [str(STAND_IN / "library.cpp")],
        extra_cflags=["-O1"],
        extra_ldflags=[str(means)],
        extra_include_paths=[str(STAND_IN), str(native.SOURCES[0].parent)],
        build_directory=str(folder),
        is_python_module=False,
    )
    native.describe()
    return folder


@pytest.fixture
def library(built_once, monkeypatch):
    """In use; on a processor new tensors are full of NaN, so that what nobody has written is not read unnoticed."""
    if not GPU:
        torch.use_deterministic_algorithms(mode=True)  # which fills them
        monkeypatch.setattr(native.Library, "loaded", True)
        monkeypatch.setattr(native.Library, "build", native.build_of(native.library()))
        monkeypatch.setattr(fused, "takes", lambda value: value.dim() == 4)
        monkeypatch.setattr(native, "_choice", torch.compiler.assume_constant_result(lambda *_: 1))
    yield built_once
    if not GPU:
        torch.use_deterministic_algorithms(mode=False)


def inputs(*shape, dtype=torch.bfloat16, packed=True, shift=0.0):
    """Queries, keys and values; views of one tensor where they are packed, with a common part if they are shifted."""
    batch, heads, tokens, dim = shape
    rng = torch.Generator(DEVICE).manual_seed(tokens)
    drawn = (torch.randn(batch, tokens, 3, heads, dim, generator=rng, device=DEVICE) + shift).to(dtype)
    views = (drawn[:, :, k].transpose(1, 2) for k in range(3))
    return [(each if packed else each.contiguous()).detach().requires_grad_() for each in views]


def explicit(q, k, v, gamma=1.0, alpha=0.0):
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=q.dtype, device=q.device).tril()
    attention = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(seen == 0, -torch.inf).softmax(-1)
    return (attention - gamma * seen / seen.sum(-1, keepdim=True)) @ v + alpha * v


def both(attend, made, sent):
    output = attend(*made)
    return [output, *torch.autograd.grad(output, made, sent)]


def errors(found, expected):
    """Relative errors of the output and of the gradients of queries, keys and values."""
    expected = [each.detach() for each in expected]
    scale = [float(each.norm().clamp_min(1e-9)) for each in expected]
    return [float((a.detach().double() - b).norm()) / size for a, b, size in zip(found, expected, scale, strict=True)]


SHAPES = [(2, 3, 1, 64), (2, 3, 127, 64), (2, 3, 129, 64), (1, 2, 1000, 128), (2, 2, 333, 80)]
SHAPES += [(1, 1, 9000, 64)] if GPU else []
FORMS = [(1.0, 0.0), (0.3, 0.0), (1.0, 1.0), (-0.5, 0.25), (2.0, 0.0)]
"""Coefficients of the mean and of a token's own value: without the gap, shaped, and such as nobody has a name for."""


@node
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_a_matrix(library, shape, dtype, packed):
    """Within twice the rounding of the type: plain attention is rounded once, and the mean is taken from that."""
    assert library.exists()
    made = inputs(*shape, dtype=dtype, packed=packed)
    sent = torch.randn_like(made[0])
    for gamma, alpha in FORMS:
        form = {"gamma": gamma, "alpha": alpha}
        found = both(lambda *each, f=form: shaped_attention(*each, is_causal=True, **f), made, sent)
        assert type(found[0].grad_fn).__name__ == "CppFunction"
        doubles = [each.detach().double().requires_grad_() for each in made]
        expected = both(lambda *each, f=form: explicit(*each, **f), doubles, sent.double())
        if shape[2] == 1:  # nothing is left but what gamma leaves
            expected, found = expected[::3], found[::3]
        assert max(errors(found, expected)) <= 2 * torch.finfo(dtype).eps


@node
def test_values_with_a_large_common_part(library):
    """The plain output is rounded near it; put together again it is what it was, as plain attention's gradients say."""
    assert library.exists()
    compare_with_plain(inputs(2, 3, 500, 64, shift=8.0), alpha=0.0)


@node
@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 1.0), (1.0, 1.0), (0.0, 30.0)])
def test_keys_with_a_large_common_part(library, alpha, gamma):
    """Gradients of queries are sums over keys that cancel what is common, if the plain output is known well enough.

    Averages of 1500 values are far smaller than the values: where these are added to them the output is kept.
    """
    assert library.exists()
    query, key, value = inputs(1, 2, 1500, 64)
    compare_with_plain([query, (key.detach() + 16).requires_grad_(), value], alpha=alpha, gamma=gamma)


def compare_with_plain(made, **form):
    """Gradients of queries and keys, on which neither the mean nor a token's own value depends: those of plain ones."""
    sent = torch.randn(
        made[0].shape, dtype=made[0].dtype, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(2)
    )
    found = both(lambda *each: shaped_attention(*each, is_causal=True, **form), made, sent)
    plain = both(lambda *each: scaled_dot_product_attention(*each, is_causal=True), made, sent)
    doubles = [each.detach().double().requires_grad_() for each in made]
    of_plain = both(lambda *each: scaled_dot_product_attention(*each, is_causal=True), doubles, sent.double())
    ours, theirs = (errors(each[1:3], of_plain[1:3]) for each in (found, plain))
    assert max(ours) <= 1.5 * max(theirs), (ours, theirs)


@node
def test_gradients_of_any_layout(library):
    """By heads or by tokens, or misaligned: kernels that were planned for the first are used for the others too."""
    assert library.exists()
    made = inputs(2, 4, 200, 64)
    sent = torch.randn_like(made[0])
    shifted = torch.empty(sent.numel() + 1, dtype=sent.dtype, device=DEVICE)[1:].view(sent.shape).copy_(sent)
    doubles = [each.detach().double().requires_grad_() for each in made]
    expected = both(explicit, doubles, sent.double())
    for each in (sent.contiguous(), sent, shifted, sent.mT.contiguous().mT):
        found = both(lambda *each: gap_free_attention(*each, is_causal=True), made, each)
        assert max(errors(found, expected)) <= 2 * torch.finfo(torch.bfloat16).eps


@node
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
def test_sizes_that_the_compiler_does_not_know(library):
    """Batches and contexts of several sizes in one graph: how heads are cut is nobody's business but the kernels'."""
    assert library.exists()

    def attend(*three):
        return gap_free_attention(*three, is_causal=True)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    for batch, tokens in ((2, 300), (3, 17), (700, 5)):
        made = inputs(batch, 2, tokens, 16)
        sent = torch.randn_like(made[0])
        found, expected = (both(each, made, sent) for each in (compiled, attend))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2.0**-6 * max(1.0, float(other.detach().abs().max())), rtol=0)


@node
@pytest.mark.parametrize("options", [{"batch_first": True}, {}, {"bias": False}, {"alpha": 1.0, "gamma": 0.5}], ids=str)
def test_modules(library, monkeypatch, options):
    """With and without a batch: what the module gives without the library, within the rounding."""
    assert library.exists()
    asked, attend = [], native.attend
    monkeypatch.setattr(native, "attend", lambda *given: asked.append(given) or attend(*given))
    torch.manual_seed(0)
    module = GapFreeAttention(64, 4, **options).to(DEVICE, torch.bfloat16)
    double = copy.deepcopy(module).double()
    for shape in ((30, 7, 64), (30, 64)):
        tokens = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        output, _ = module(tokens, tokens, tokens, need_weights=False, is_causal=True)
        with monkeypatch.context() as patched:
            patched.setattr(native.Library, "loaded", False)
            patched.setattr(fused, "takes", lambda _: False)
            expected, _ = double(*3 * [tokens.double()], need_weights=False, is_causal=True)
        found = torch.autograd.grad(output.float().square().sum(), list(module.parameters()))
        wanted = torch.autograd.grad(expected.square().sum(), list(double.parameters()))
        assert max(errors([output, *found], [expected, *wanted])) < 0.03
    assert len(asked) == 2  # the library, and for each shape


@gpu
def test_no_memory_is_kept_beside_that_of_plain_attention(library):
    assert library.exists()

    def kept(attend):
        made = inputs(4, 12, 1024, 64)
        before = torch.cuda.memory_allocated()
        outputs = [attend(*made, is_causal=True) for _ in range(4)]
        assert len(outputs) == 4
        return torch.cuda.memory_allocated() - before

    for attend in (scaled_dot_product_attention, gap_free_attention):  # kernels have workspaces the first time
        kept(attend)
    assert kept(gap_free_attention) <= 1.05 * kept(scaled_dot_product_attention)


@gpu
def test_runs_agree_to_the_last_digit(library):
    assert library.exists()
    made = inputs(16, 12, 1024, 64)
    sent = torch.randn_like(made[0])
    output, *_, of_value = both(lambda *each: gap_free_attention(*each, is_causal=True), made, sent)
    for _ in range(20):
        again = both(lambda *each: gap_free_attention(*each, is_causal=True), made, sent)
        assert torch.equal(again[0], output)
        assert torch.equal(again[-1], of_value)


@gpu
def test_dropout_is_that_of_the_kernel(library):
    assert library.exists()
    made = inputs(2, 3, 256, 64)
    torch.manual_seed(0)
    plain = scaled_dot_product_attention(*made, dropout_p=0.5, is_causal=True)
    torch.manual_seed(0)
    found = gap_free_attention(*made, dropout_p=0.5, is_causal=True)
    mean = made[2].double().cumsum(-2) / torch.arange(1, 257, device=DEVICE)[:, None]
    torch.testing.assert_close(found.double(), plain.double() - mean, atol=2.0**-6, rtol=0)


@node
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
def test_inputs_of_several_types(library, monkeypatch, compiled):
    """As where rotations leave queries and keys in single precision: autocast makes one type of them for torch."""
    assert library.exists()
    if not GPU:

        def run(_, target, source, *__):
            return target - source.cumsum(2) / torch.arange(1, source.shape[2] + 1)[:, None]

        monkeypatch.setattr(fused, "_run", run)
    query, key, value = (each.detach() for each in inputs(2, 3, 129, 64))
    attend = torch.compile(gap_free_attention, fullgraph=True) if compiled else gap_free_attention
    with torch.autocast(DEVICE, torch.bfloat16):
        found = attend(query.float(), key.float(), value, is_causal=True)
    expected = explicit(*(each.double() for each in (query, key, value)))
    assert max(errors([found], [expected])) <= 2 * torch.finfo(torch.bfloat16).eps


@node
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
def test_compiled_in_one_graph(library):
    assert library.exists()
    made = inputs(2, 4, 333, 64)
    sent = torch.randn_like(made[0])
    compiled = torch.compile(gap_free_attention, fullgraph=True)
    found, expected = (
        both(lambda *each, f=attend: f(*each, is_causal=True), made, sent) for attend in (compiled, gap_free_attention)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2.0**-7 * max(1.0, float(other.detach().abs().max())), rtol=0)


@node
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which torch hides
def test_a_compiled_layer(library):
    """Projections around it, whose gradients want what attention has given away: as accurate as without a compiler."""
    assert library.exists()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, width, device=DEVICE, dtype=torch.bfloat16) for width in (384, 128)]
    tokens = torch.randn(2, 300, 128, device=DEVICE, dtype=torch.bfloat16)

    def layer(attend, inside, out, tokens):
        views = (each.unflatten(-1, (2, 64)).transpose(1, 2) for each in inside(tokens).split(128, -1))
        return out(attend(*views).transpose(1, 2).flatten(-2))

    def attend(*three):
        return gap_free_attention(*three, is_causal=True)

    def gradients(layer, attend, layers, tokens):
        weights = [each for linear in layers for each in linear.parameters()]
        return torch.autograd.grad(layer(attend, *layers, tokens).square().mean(), weights)

    doubles = [copy.deepcopy(each).double() for each in layers]
    expected = gradients(layer, explicit, doubles, tokens.double())
    eager, one, whole = (
        errors(gradients(*each, layers, tokens), expected)
        for each in (
            (layer, attend),
            (layer, torch.compile(attend, fullgraph=True)),
            (torch.compile(layer, fullgraph=True), attend),
        )
    )
    assert max(eager) < 0.05
    for found in (one, whole):
        assert all(a <= 1.5 * b for a, b in zip(found, eager, strict=True)), (eager, found)


@node
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
def test_a_compiled_graph_is_of_its_library(library):
    """Torch keeps graphs on disk, and would take those of the library before: the arguments say which it is."""
    assert library.exists()
    graphs = []

    def compiler(module, _):
        graphs.append(module.code)
        return module.forward

    query, key, value = (each.detach() for each in inputs(1, 2, 9, 16))
    torch.compile(gap_free_attention, backend=compiler, fullgraph=True)(query, key, value, is_causal=True)
    assert native.Library.build.startswith("bulkedge_")
    assert [graph.count(f"'{native.Library.build}'") for graph in graphs] == [1]


@node
def test_the_operators_keep_the_rules_of_torch(library):
    """Schemas, fake tensors and what is registered for autograd."""
    assert library.exists()
    made = [each.detach() for each in inputs(2, 4, 333, 64)]
    backend = torch._fused_sdp_choice(*made, is_causal=True)
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    for alpha in (0.0, 1.0):
        check_operators(made, (backend, 0.0, None, alpha, 1.0), utils)


def check_operators(made, options, utils):
    torch.library.opcheck(torch.ops.bulkedge_native.attend_forward.default, (*made, *options), test_utils=utils)
    forward = torch.ops.bulkedge_native.attend_forward(*made, *options)
    back = (torch.ones_like(made[0]), *made, *forward, *options)
    torch.library.opcheck(torch.ops.bulkedge_native.attend_backward.default, back, test_utils=utils)


@gpu
def test_cuda_graphs(library):
    assert library.exists()
    made = [each.detach() for each in inputs(2, 4, 333, 64)]
    gap_free_attention(*made, is_causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = gap_free_attention(*made, is_causal=True)
    made[2].copy_(torch.randn_like(made[2]))
    graph.replay()
    assert torch.equal(output, gap_free_attention(*made, is_causal=True))


@gpu
def test_there_is_no_second_derivative_unless_torch_has_one(library):
    assert library.exists()
    made = inputs(1, 2, 40, 64)
    (first,) = torch.autograd.grad(gap_free_attention(*made, is_causal=True).square().sum(), made[2], create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(first.square().sum(), made[2])
    with sdpa_kernel(SDPBackend.MATH):
        output = gap_free_attention(*made, is_causal=True)
        (first,) = torch.autograd.grad(output.square().sum(), made[2], create_graph=True)
        assert torch.autograd.grad(first.square().sum(), made[2])[0].isfinite().all()


@pytest.fixture
def asked(monkeypatch):
    """What the library would be asked for, with torch in its place."""
    calls = []

    def attend(query, key, value, *options):
        calls.append(options)
        return explicit(query, key, value, gamma=options[-1], alpha=options[-2])

    monkeypatch.setattr(native.Library, "loaded", True)
    monkeypatch.setattr(native, "attend", attend)
    monkeypatch.setattr(fused, "takes", lambda value: value.dim() == 4)
    monkeypatch.setattr(fused, "less_running_mean", lambda target, *_, **__: target)
    return calls


def test_what_the_library_is_for(asked):
    drawn = torch.randn(3, 2, 4, 9, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0)).unbind()
    torch.testing.assert_close(gap_free_attention(*drawn, is_causal=True), explicit(*drawn))
    shaped_attention(*drawn, is_causal=True, alpha=0.2, gamma=0.5, dropout_p=0.1, scale=0.3)
    assert asked == [(0.0, None, 0.0, 1.0), (0.1, 0.3, 0.2, 0.5)]
    others = ({"beta": 0.5}, {"gamma": 0.0}, {"gamma": torch.ones(4, dtype=torch.double)})
    for options in others:
        shaped_attention(*drawn, is_causal=True, **options)
    few = [each[:, :2] for each in drawn[1:]]
    shaped_attention(drawn[0], *few, is_causal=True, enable_gqa=True)
    assert len(asked) == 2
