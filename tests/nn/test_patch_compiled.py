"""A patched model compiles into the graphs of the plain one, once, and is what it is without a compiler.

Graphs are counted over several steps: what is compiled anew at every step ends at torch's limit, and runs in pieces.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import SMALL  # noqa: E402

from bulkedge import nn  # noqa: E402
from bulkedge.nn import fused  # noqa: E402
from bulkedge.nn.patching import interface  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # by torch itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # which torch hides
]
STEPS = 3
ENDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
MODELS = {
    "gpt2": lambda sizes: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ),
    "llama": lambda sizes: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_key_value_heads=2, use_cache=False)
    ),
    "mistral": lambda sizes: transformers.MistralForCausalLM(
        transformers.MistralConfig(**sizes, num_key_value_heads=2, sliding_window=5)
    ),
    "bert": lambda sizes: transformers.BertForMaskedLM(
        transformers.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ),
}
PADDING = (torch.arange(16) < torch.tensor([[7], [16], [12]])).long()


@pytest.fixture(autouse=True)
def compilers():
    """Nothing was compiled before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A compiler that counts the graphs it is given and how often they run, and knows what is called in them."""

    def __init__(self, backend="eager"):
        self.backend, self.made, self.run, self.called = torch._dynamo.lookup_backend(backend), 0, 0, set()

    def __call__(self, module, inputs):
        self.made += 1
        inside = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
        self.called |= {str(each.target) for graph in inside for each in graph.nodes}
        compiled = self.backend(module, inputs)

        def run(*given):
            self.run += 1
            return compiled(*given)

        return run

    def calls(self, name):
        return any(name in each for each in self.called)


def build(name, implementation="sdpa", layers=1):
    """In training, its matrices so large that attention is not uniform."""
    torch.manual_seed(0)
    sizes = SMALL | {"num_hidden_layers": layers, "vocab_size": 50, "max_position_embeddings": 32}
    model = MODELS[name](sizes | ENDS)
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4)
    return model.train()


def batch(*, padding=False, labels=False):
    ids = torch.randint(0, 50, (3, 16), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids}
    if padding:
        given["attention_mask"] = PADDING
    if labels:
        given["labels"] = ids.masked_fill(PADDING == 0, -100) if padding else ids
    return given


def steps(call, given):
    """Several steps in mixed precision, and the last loss."""
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(**given).loss
        loss.backward()
    return loss.detach()


CASES = [
    ("gpt2", "sdpa", False, 1),
    ("llama", "eager", True, 1),
    *(
        pytest.param(*each, 3, marks=pytest.mark.slow)
        for each in itertools.product(("gpt2", "llama", "bert"), ("sdpa", "eager"), (False, True))
    ),
]


@pytest.mark.parametrize(("name", "implementation", "padding", "layers"), CASES)
def test_as_many_graphs_as_the_plain_model(name, implementation, padding, layers):
    """In training, after a first pass that was eager; GPT-2 leaves its graph once by itself, for its loss."""
    given, found = batch(padding=padding, labels=True), []
    for patched in (False, True):
        model, graphs = build(name, implementation, layers), Graphs()
        if patched:
            nn.remove_gap(model)
            with torch.no_grad():
                model(**batch())
        loss = steps(torch.compile(model, backend=graphs), given)
        found.append((graphs.made, graphs.run, loss))
        torch._dynamo.reset()
    (plain, plain_run, plain_loss), (made, run, loss) = found
    assert made == plain
    assert run == plain_run == STEPS * plain
    assert loss != plain_loss  # it is another model
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss, model(**given).loss.detach(), atol=2.0**-8, rtol=0)


@pytest.mark.parametrize(
    ("name", "padding"),
    [("llama", True), *(pytest.param(name, False, marks=pytest.mark.slow) for name in ("gpt2", "bert"))],
)
def test_a_first_pass_that_is_compiled_is_one_graph(name, padding, monkeypatch):
    """Also where no model was patched before, so that transformers does not know the attention. In double precision."""
    monkeypatch.setattr(interface._Registered, "yet", False)
    monkeypatch.setattr(transformers.PreTrainedModel, "post_init", transformers.PreTrainedModel.post_init)
    model, graphs, given = build(name).double(), Graphs("aot_eager"), batch(padding=padding)
    nn.remove_gap(model)
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    found = []
    for call in (*STEPS * [compiled], model, compiled):
        model.zero_grad()
        logits = call(**given).logits
        logits.square().mean().backward()
        found.append([logits.detach(), *(each.grad for each in model.parameters() if each.grad is not None)])
    assert (graphs.made, graphs.run) == (1, STEPS + 1)
    assert not model._forward_hooks  # the eager pass has ended the check
    expected = found.pop(STEPS)
    for each in found:
        for one, other in zip(each, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-12 * max(1.0, float(other.abs().max())), rtol=0)


@pytest.mark.parametrize(("padding", "route"), [(False, "cumsum"), (True, "einsum")], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_a_compiled_decoder_with_a_cache_is_causal_by_itself(name, padding, route):
    """Its mask is written out for padding alone: a running mean costs less than a product with a mask."""
    model, graphs, given = build(name).double(), Graphs(), batch(padding=padding) | {"use_cache": True}
    nn.remove_gap(model)
    expected = model(**given).logits
    found = torch.compile(model, backend=graphs)(**given).logits
    assert {each for each in ("cumsum", "einsum") if graphs.calls(each)} == {route}
    torch.testing.assert_close(found, expected, atol=1e-12 * float(expected.detach().abs().max()), rtol=0)


def test_a_mask_is_left_out_only_where_it_is_causal_and_whole():
    """Whatever else is asked of it is as transformers has it."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

    asked = {"batch_size": 2, "q_length": 5, "kv_length": 5, "mask_function": causal_mask_function}
    assert interface._mask(**asked) is None
    hidden = torch.ones(2, 5, dtype=torch.bool)
    hidden[0, 3:] = False
    others = (
        {"allow_is_causal_skip": False},
        {"attention_mask": hidden},
        {"kv_length": 9, "q_offset": 4},
        {"q_offset": torch.tensor(0), "kv_length": 9},
        {
            "mask_function": lambda _, __, row, column: (row >= column) & (row < column + 2),
            "allow_is_causal_skip": False,
        },
    )
    for each in others:
        torch.testing.assert_close(interface._mask(**asked | each), sdpa_mask(**asked | each))
    rows = interface._mask(**asked | {"mask_function": bidirectional_mask_function, "attention_mask": hidden})
    assert rows.stride(-2) == 0


def test_layers_that_are_compiled_one_by_one():
    """The check of the first pass is eager then, and the attention that it waits for is not."""
    made = []
    for patched in (False, True):
        model, graphs = build("llama", layers=2), Graphs()
        if patched:
            nn.remove_gap(model)
        for layer in model.model.layers:
            layer.compile(backend=graphs, fullgraph=True)
        for _ in range(STEPS):
            model(**batch())
        made.append((graphs.made, graphs.run))
        torch._dynamo.reset()
    assert made[0] == made[1]
    assert not model._forward_hooks


def slipping():
    """A model whose class says that it comes to the interface, and that does not."""

    class Slips(transformers.LlamaModel):
        def forward(self, x):
            return 2 * x

    return Slips(transformers.LlamaConfig(**SMALL, **ENDS, vocab_size=50))


def test_a_compiled_model_that_slips_through_fails_in_its_first_pass():
    model = slipping()
    nn.remove_gap(model)
    compiled = torch.compile(model, backend=Graphs())
    with pytest.raises(RuntimeError, match="Slips never called transformers' AttentionInterface"):
        compiled(torch.ones(1))
    assert not nn.patches(model)
    assert not model._forward_hooks
    assert compiled(torch.ones(1)) == 2


def test_where_the_graph_has_to_be_whole_the_compiler_refuses_it():
    """It cannot leave the graph to take patches off: it says where it stopped, every time."""
    model = slipping()
    nn.remove_gap(model)
    compiled = torch.compile(model, backend=Graphs(), fullgraph=True)
    for _ in range(2):
        with pytest.raises(torch._dynamo.exc.Unsupported, match="_take_off"):
            compiled(torch.ones(1))
    assert nn.patches(model)


@pytest.mark.always
def test_a_compiled_model_notices_its_patches():
    """Made, added to and taken off after it was compiled: a graph without them may not run with them."""
    model, graphs = build("llama"), Graphs()
    compiled = torch.compile(model, backend=graphs, fullgraph=True)

    def outputs():
        with torch.no_grad():
            found = compiled(**batch()).logits
            torch.testing.assert_close(found, model(**batch()).logits, atol=1e-5, rtol=0)
        return found

    plain = outputs()
    with nn.remove_gap(model):
        free = outputs()
        with nn.scale_scores(model, [[1.0, 1.5, 2.0, 2.5]]):
            sharp = outputs()
        assert torch.equal(outputs(), free)
    assert torch.equal(outputs(), plain)
    with nn.remove_gap(model):  # again, when a graph without patches is the last that ran
        assert torch.equal(outputs(), free)
    for one, other in ((free, plain), (sharp, free)):
        assert (one - other).abs().max() > 0.01
    assert graphs.made <= 4  # for each of the patches, and for none


def less_mean(_, target, source, weights, *rest):
    """What the kernels compute, by a matrix."""
    keep, own, scale, reach, adjoint, heads = rest
    mean = torch.ones(source.shape[2], source.shape[2], dtype=source.dtype)
    if reach:
        mean = mean.tril().triu(1 - reach) if reach < len(mean) else mean.tril()
    mean = mean / mean.sum(-1, keepdim=True) if weights is None else weights[:, :, None, :].to(source.dtype)
    found = own * source - scale * ((mean.mT if adjoint else mean) @ source)
    shared = source.shape[1] // heads if adjoint else heads // source.shape[1]
    found = found.unflatten(1, (-1, shared)).sum(2) if adjoint else found.repeat_interleave(shared, 1)
    return fused._allocate(target, source, heads).copy_(found if target is None else keep * target + found)


@pytest.fixture
def kernels(monkeypatch):
    """The branches that a GPU takes, with torch in the place of the kernels."""
    monkeypatch.setattr(fused, "takes", lambda value: value.dim() == 4)
    monkeypatch.setattr(fused, "_run", less_mean)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "mistral"])
def test_the_branches_of_a_gpu_are_one_graph(kernels, monkeypatch, name):
    """Causal attention, with shared heads too, full attention and a window: the operator once a layer."""
    if name in {"gpt2", "llama"}:
        # transformers writes causal masks out when it compiles, since positions might be of packed sequences; not here
        interface.register()
        masks = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
        monkeypatch.setitem(masks._global_mapping, interface.NAME, lambda **_: None)
    model, graphs = build(name).double(), Graphs()
    nn.remove_gap(model)
    compiled = torch.compile(model, backend=graphs, fullgraph=True)

    def run(call):
        model.zero_grad()
        logits = call(**batch()).logits
        logits.square().mean().backward()
        return [logits.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]

    for _ in range(STEPS):
        found = run(compiled)
    assert (graphs.made, graphs.run) == (1, STEPS)
    assert graphs.calls("scaled_dot_product_attention")
    assert graphs.calls("bulkedge.less_mean")
    assert not graphs.calls("einsum")  # no product with a mask
    eager = run(model)
    monkeypatch.undo()
    for one, *others in zip(found, eager, run(model), strict=True):
        for other in others:
            torch.testing.assert_close(one, other, atol=1e-12 * max(1.0, float(other.abs().max())), rtol=0)
