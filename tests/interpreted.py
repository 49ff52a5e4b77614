"""Programs with Triton's kernels, run by its interpreter: numbers are tested without a GPU, not layouts and times."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

needs_triton = pytest.mark.skipif(
    not (find_spec("triton") and find_spec("torch")), reason="Triton or torch is not installed"
)

PRELUDE = """
import contextlib

import torch
from triton.runtime import interpreter

# from version 2.4 on NumPy makes numbers of arrays without dimensions alone; Triton asks it for others
plain = interpreter._LangPatchScope.set_attr
index = lambda tensor: tensor.handle.data.item()
interpreter._LangPatchScope.set_attr = lambda scope, obj, name, value: plain(
    scope, obj, name, index if name == "__index__" else value
)
torch.cuda.device = lambda _: contextlib.nullcontext()
"""


def interpret(program):
    """Run a program in a process of its own, where kernels take tensors of the processor; it fails by an assertion."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PRELUDE + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
