"""A model that two processes train together is read as the model itself is, each process with its own batch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no processes that talk through gloo", allow_module_level=True)

TESTS = Path(__file__).parents[1]
PROCESS = """
import json, sys
import numpy as np
import torch
from torch.distributed.fsdp import fully_shard
from small_models import training
import bulkedge as be

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2)

def wrapped(how):
    model, inputs = training("llama")
    inputs = {name: each.roll(rank, -1) for name, each in inputs.items()}  # a batch of its own
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif how == "fsdp":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, inputs

found = {}
for how in ("plain", "ddp", "fsdp"):
    model, inputs = wrapped(how)
    adam = torch.optim.SGD(model.parameters(), lr=0.0)
    with be.watch(model, every=1) as watched:
        for _ in range(2):
            model(**inputs).last_hidden_state.square().mean().backward()
            adam.step()
    sharded = [type(each).__name__ for each in model.parameters()]
    found[how] = {
        "readings": {name: each.values.tolist() for name, each in watched.data.items()},
        "names": watched.data.module.values.tolist(),
        "sharded": sharded.count("DTensor") == len(sharded),
        "gradients": all(each.grad is not None for each in model.parameters() if each.requires_grad),
    }
with open(out, "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""
"""Reads a model alone, and wrapped by DDP and by FSDP2 together with the other process."""


GROUP = """
import json, sys
import torch
from small_models import training
import bulkedge as be
from bulkedge.support.errors import DomainError

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2)
model, inputs = training("llama")
inputs = {name: each.roll(rank, -1)[: 2 + rank] for name, each in inputs.items()}
with be.watch(model, every=1) as own:
    model(**inputs)
calls, plain = [], torch.distributed.all_reduce
torch.distributed.all_reduce = lambda *arguments, **named: (calls.append(1), plain(*arguments, **named))[1]
counts = []
with be.watch(model, every=3, group="world") as watched:
    for _ in range(5):
        calls.clear()
        model(**inputs)
        counts.append(len(calls))
broken = torch.nn.MultiheadAttention(32, 4, batch_first=True, add_zero_attn=rank == 1)
try:
    with be.watch(broken, every=1, group="world"):
        broken(*torch.randn(3, 1, 5, 32))
    said = ""
except DomainError as error:
    said = str(error)
readings = [{name: each.values[0].tolist() for name, each in found.data.items()} for found in (own, watched)]
with open(out, "w") as file:
    json.dump({"readings": readings, "counts": counts, "steps": watched.data.step.values.tolist(), "said": said}, file)
torch.distributed.destroy_process_group()
"""
"""Reads a model alone, and as one of a group; then one that the second process cannot read."""


def run_both(program, folder):
    """What two processes of a program write."""
    outs = [folder / f"{rank}.json" for rank in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(folder / "store"), str(out)],
            cwd=TESTS,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    errors = [each.communicate(timeout=600)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], errors
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.processes
@pytest.mark.slow
def test_readings_of_a_group_are_means_without_a_collective_in_other_passes(tmp_path):
    found = run_both(GROUP, tmp_path)
    (own, mine), (other, yours) = (each["readings"] for each in found)
    for name in own:
        if name != "expected_position":
            np.testing.assert_array_equal(mine[name], yours[name], err_msg=name)  # in both processes
        one, two = np.array(own[name]), np.array(other[name])
        expected = {
            "beta": np.sqrt((one**2 + two**2) / 2),
            "keys": one,
            "logit": np.maximum(one, two),
            "logit_bound": np.maximum(one, two),
            "expected_position": one,
        }.get(name, (one + two) / 2)
        np.testing.assert_allclose(mine[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    for each in found:
        assert each["steps"] == [0, 3]
        assert each["counts"] == [3, 0, 0, 2, 0]  # the first pass also asks whether all can read
    assert "another process of the group could not read" in found[0]["said"]  # and neither waits for the other
    assert "add_zero_attn" in found[1]["said"]


@pytest.mark.processes
@pytest.mark.slow
def test_models_of_two_processes_are_read_as_they_are_alone(tmp_path):
    found = run_both(PROCESS, tmp_path)
    for mine in found:
        assert [mine[how]["sharded"] for how in ("plain", "ddp", "fsdp")] == [False, False, True]
        assert mine["ddp"]["names"] == [f"module.{name}" for name in mine["plain"]["names"]]
        assert mine["fsdp"]["names"] == mine["plain"]["names"]
        for how in ("ddp", "fsdp"):
            assert mine[how]["gradients"]
            for name, values in mine["plain"]["readings"].items():
                np.testing.assert_array_equal(mine[how]["readings"][name], values, err_msg=f"{how}, {name}")
    beta = [each["plain"]["readings"]["beta"] for each in found]
    assert beta[0] != beta[1]  # the batches differ, and nothing is exchanged
