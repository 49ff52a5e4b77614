"""The library's CUDA kernels, compiled for a processor: the same source, with a GPU made of loops (``nn/stand_in``)."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

STAND_IN = Path(__file__).parent / "nn" / "stand_in"

LAUNCH = re.compile(r"(\w+<\w+>)<<<(\w+), (\w+), 0, \w+>>>\((\w+)\)")
SHARED = re.compile(r"__shared__ ([^;]*);")
ARRAY = re.compile(r"(\w+)\[([^\]]*)\]")
FLAGS = ["-O2", "-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-Wl,-Bsymbolic"]
"""CUDA reads words as pairs of numbers; threads leave each other's stacks, which fortified jumps refuse; and of several
libraries each calls its own kernels."""


def missing():
    """What they cannot be compiled without here, if anything."""
    if not sys.platform.startswith("linux"):
        return "threads take turns by Linux's means"
    return None if shutil.which("c++") else "a C++ compiler is missing"


def in_plain_cpp(source):
    """What nvcc alone understands, in C++: launches, and shared memory with a band behind each array."""

    def shared(declared):
        widened = ARRAY.sub(r"\1[(\2) + device::BAND]", declared[1])
        return f"static {widened}; device::shares({', '.join(name for name, _ in ARRAY.findall(declared[1]))});"

    return SHARED.sub(shared, LAUNCH.sub(r"device::run(\2, \3, [=] { \1(\4); })", source))


def compile_kernels(source, headers, folder):
    """A shared library of kernels and of what ``stand_in/interface.cpp`` makes of them.

    Parameters
    ----------
    source : str
        Of ``means.cu``.
    headers : list of Path
        Folders with ``means.h`` and with torch's headers.
    folder : Path
        Where it is written.
    """
    plain, library = folder / "means.cpp", folder / "means.so"
    plain.write_text('#line 1 "means.cu"\n' + in_plain_cpp(source), encoding="utf-8")
    sources = [plain, STAND_IN / "device.cpp", STAND_IN / "interface.cpp"]
    options = ["-fsanitize=alignment", "-include", "device.h", *(f"-I{each}" for each in (STAND_IN, *headers))]
    command = [shutil.which("c++"), *FLAGS, *options, *sources, "-o", library]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise RuntimeError(told.stderr)
    return library
