"""Repairs see through whatever stands around a model: adapters, compilers, parallel training, quantised weights."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import build, hidden  # noqa: E402

from bulkedge import nn  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

TESTS = Path(__file__).parents[1]


class Quantised(torch.nn.Module):
    """A linear layer as bitsandbytes has them: weights of bytes and a scale, and nothing that says `weight.float`."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().max() / 127
        self.register_buffer("packed", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        return torch.nn.functional.linear(x, self.packed.to(x.dtype) * self.scale, self.bias)


def quantise(module):
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, Quantised(child))
        else:
            quantise(child)
    return module


class Around(torch.nn.Module):
    """A module with a model in it, as trainers and users write them."""

    def __init__(self, model):
        super().__init__()
        self.encoder, self.head = model, torch.nn.Linear(4, 4)

    def forward(self, **inputs):
        return self.encoder(**inputs)


def adapted(model):
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=2)
    torch.manual_seed(1)
    return peft.get_peft_model(model, options)


WRAPPED = {
    "adapters": adapted,
    "merged adapters": lambda model: adapted(model).merge_and_unload(),
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled adapters": lambda model: torch.compile(adapted(model), backend="eager"),
    "a module around": Around,
    "threads": torch.nn.DataParallel,
    "quantised": quantise,
    "adapters around": lambda model: Around(adapted(model)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch itself
@pytest.mark.parametrize(
    "way", [pytest.param(each, marks=pytest.mark.slow) if "compiled" in each else each for each in WRAPPED]
)
def test_repairs_reach_the_model_inside(way):
    """Alike from outside and inside, as if the model inside had been given, and off again bit for bit."""
    torch._dynamo.reset()
    inner, inputs = build("llama")
    model = WRAPPED[way](inner).eval()
    inner = nn.patching.interface.unwrap(model)

    def outputs():
        with torch.no_grad():
            return model(**inputs).last_hidden_state

    before, factors = outputs(), {"layers.1.self_attn": [1.0, 2.0, 0.5, 4.0]}
    for repair in (nn.remove_gap, lambda each: nn.scale_scores(each, factors), lambda each: nn.scale_scores(each, 2.0)):
        with repair(inner):
            expected = outputs()
        with repair(model) as patch:
            assert patch.active
            assert nn.patches(model) == nn.patches(inner) != ()
            assert torch.equal(outputs(), expected)
        assert (expected - before).abs().max() > 1e-3
        assert torch.equal(outputs(), before)
    nn.remove_gap(model)
    nn.restore_gap(model)
    assert torch.equal(outputs(), before)
    with pytest.raises(DomainError, match=r"the gap of \w+ was not removed"):
        nn.restore_gap(model)


def test_several_models_and_none_are_refused_in_a_sentence():
    two = torch.nn.ModuleList([build("bert")[0], build("gpt2")[0]])
    for model in (two, torch.nn.Sequential(torch.nn.Linear(2, 2))):
        for repair in (nn.remove_gap, lambda each: nn.scale_scores(each, 2.0), nn.restore_gap):
            with pytest.raises(DomainError, match="is not a transformers model, nor is there exactly one inside"):
                repair(model)


def test_twice_is_once_until_both_are_off():
    model, inputs = build("bert")
    plain = hidden(model, inputs)
    one, other = nn.remove_gap(model), nn.remove_gap(model)
    free = hidden(model, inputs)
    nn.restore(one)
    assert torch.equal(hidden(model, inputs), free)
    nn.restore(other)
    assert torch.equal(hidden(model, inputs), plain)


PROCESS = """
import sys
import torch
from torch.distributed.fsdp import fully_shard
from small_models import training
from bulkedge import nn

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2)

def repaired(how, early):
    model, inputs = training("llama")
    inputs = {name: each.roll(rank, -1) for name, each in inputs.items()}  # a batch of its own
    repair = lambda: (nn.remove_gap(model), nn.scale_scores(model, {"layers.0.self_attn": [1.0, 2.0, 0.5, 4.0]}))
    if early:
        repair()
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif how == "fsdp":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if not early:
        repair()
    output = model(**inputs).last_hidden_state
    output.square().mean().backward()
    gradient = next(iter(model.parameters())).grad
    gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    assert len(nn.patches(model)) == 2
    nn.restore_gap(model)
    nn.restore(model)
    return output.detach(), model(**inputs).last_hidden_state.detach(), gradient

for early in (False, True):
    alone, plain, own = repaired("alone", early)
    both = own.clone()
    torch.distributed.all_reduce(both)
    assert (alone - plain).abs().max() > 1e-3
    for how in ("ddp", "fsdp"):
        found, restored, gradient = repaired(how, early)
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0, msg=how)
        torch.testing.assert_close(restored, plain, atol=1e-5, rtol=0, msg=how)
        torch.testing.assert_close(gradient, both / 2, atol=1e-6, rtol=1e-4, msg=how)
torch.distributed.destroy_process_group()
"""
"""Repairs a model alone, and wrapped by DDP and by FSDP2 together with the other process; before it is wrapped, too."""


@pytest.mark.processes
@pytest.mark.slow
def test_models_of_two_processes(tmp_path):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no processes that talk through gloo")
    command = [sys.executable, "-c", PROCESS]
    running = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], cwd=TESTS, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [each.communicate(timeout=600)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], errors
