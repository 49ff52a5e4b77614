"""Causal attention without its gap in C++ and CUDA, built on the user's machine: no Python in a training step.

``attention.cpp`` has the node of autograd's graph, ``means.cu`` the kernels. :func:`build_kernels` compiles both once
for this version of torch and of the sources, with torch's own tools; in later processes the first call on a GPU that
needs the library loads it. Without it attention without its gap is what it is: torch's kernels and Triton's.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bulkedge.nn import fused
from bulkedge.support.errors import BulkedgeError, StoreError
from bulkedge.support.files import remove_folder, seal, unseal

SEAL = "checksum.json"
SOURCES = tuple(Path(__file__).with_name(name) for name in ("attention.cpp", "means.cu", "means.h"))


class Library:
    """Whether it is in use (None: nobody has looked yet), and whether torch was told what its operators return.

    ``build`` tells one library from another. It is an argument of the operators that compilers look into, because torch
    keeps compiled graphs on disk, by the names and arguments in them: without it, a later library would be run as the
    one before was.
    """

    loaded: bool | None = None
    described = False
    build = ""


class BuildError(BulkedgeError):
    """The library could not be built; the text says what is missing."""


def build_kernels(*, verbose: bool = False) -> Path:
    """Build the library, unless it is there, and use it from now on.

    It is kept for later processes where torch keeps extensions (``TORCH_EXTENSIONS_DIR``, a folder in ``~/.cache`` by
    default), to which nobody else may write. Needs a GPU, ninja, a C++ compiler and nvcc of the CUDA version that torch
    was built with; half a minute.

    Parameters
    ----------
    verbose : bool
        Whether to show what the compilers say.

    Returns
    -------
    pathlib.Path
        The library.

    Raises
    ------
    BuildError
        If something that it needs is missing, or the folder is not the user's own.

    Examples
    --------
    >>> build_kernels()                                                # doctest: +SKIP
    """
    from torch.utils import cpp_extension

    if not torch.cuda.is_available():
        raise BuildError("torch sees no GPU, so there is nothing to build kernels for")
    path = library()
    if load():
        return path
    sys.stderr.write("bulkedge builds its CUDA kernels, once for this version of torch: half a minute\n")
    root = path.parent.parent
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(root)
        with TemporaryDirectory(prefix=".bulkedge-", dir=root) as draft:
            folder = Path(draft) / path.parent.name
            folder.mkdir(mode=0o700)
            cpp_extension.load(
                path.stem,
                [str(each) for each in SOURCES if each.suffix != ".h"],
                extra_cflags=["-O2"],
                extra_cuda_cflags=["-O3"],
                build_directory=str(folder),
                with_cuda=True,
                is_python_module=False,
                verbose=verbose,
            )
            (folder / path.name).chmod(0o700)
            seal(folder, SEAL, {"files": [path.name]})
            (folder / SEAL).chmod(0o600)
            remove_folder(path.parent)
            folder.rename(path.parent)
    except (OSError, RuntimeError) as error:
        needed = "needed are ninja, a C++ compiler and CUDA's nvcc, as for any extension of torch"
        raise BuildError(f"{error.__cause__ or error}\n{needed}") from error
    _use(path)  # torch has loaded it
    return path


def library() -> Path:
    """Where the library is, or will be: a folder of its own for these sources and this torch."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - which never raises
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    if not root.is_absolute():  # without a home "~" is a folder of wherever one is
        raise BuildError(f"{root} depends on the folder one is in: set TORCH_EXTENSIONS_DIR to an absolute path")
    digest = hashlib.sha256(torch.__version__.encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    name = f"bulkedge_{digest.hexdigest()[:16]}"
    return root / name / f"{name}.so"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def look() -> bool:
    """Load a library that was built, in the first call; then nothing. True, a constant for compilers."""
    if Library.loaded is None:
        load()
    return True


def load() -> bool:
    """Use the library if it was built, is the user's own and is what was built."""
    Library.loaded = bool(Library.loaded)
    try:
        path = library()
        if not os.path.isfile(path):  # noqa: PTH113 - which never raises
            return Library.loaded
        _require_own(path, path.parent / SEAL, path.parent, path.parent.parent)
        unseal(path.parent, SEAL)
        torch.ops.load_library(str(path))
    except BuildError:
        return Library.loaded
    except (OSError, StoreError) as error:
        warnings.warn(
            f"the built kernels are not used: {error.__cause__ or error}; be.nn.build_kernels() builds them again",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    _use(path)
    return True


def _require_own(*paths: Path) -> None:
    """Refuse files and folders that anybody else may change: what is in them runs as this user."""
    for path in paths:
        found = path.stat()
        if hasattr(os, "getuid") and found.st_uid != os.getuid():
            raise OSError(
                f"{path} belongs to another user; remove it, or set TORCH_EXTENSIONS_DIR to a folder of yours"
            )
        if os.name == "posix" and found.st_mode & 0o022:
            raise OSError(f"others may write to {path}; say: chmod go-w {path}")


def _use(path: Path) -> None:
    if not Library.described:
        describe()
    Library.loaded, Library.described, Library.build = True, True, build_of(path)


def build_of(path: Path) -> str:
    """What tells a library from others, and the kernels beside it, which it calls where it has none."""
    return f"{path.stem} {fused.BUILD}"


def describe() -> None:
    """Tell torch what the operators return, for its compiler; once for a library that is loaded."""
    for name, fake in _FAKES.items():
        torch.library.register_fake(f"bulkedge_native::{name}", fake)


def attend(  # noqa: PLR0913, PLR0917 - of attention
    query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float | None, alpha: float, gamma: float
) -> Tensor:
    """``(alpha I + A - gamma C) V`` for causal attention, as many queries as keys, and no heads that are shared."""
    return torch.ops.bulkedge_native.attend.default(
        query, key, value, dropout, scale, alpha, gamma, _backend(value), Library.build
    )


def _backend(value: Tensor) -> int | None:
    """Which of torch's kernels to use, where that has to be known before there are tensors to choose by."""
    if not torch.compiler.is_compiling():
        return None
    dim = value.shape[-1]
    return _choice(value.dtype, 64 if dim <= 64 else 128 if dim <= 128 else 256, value.device.index)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choice(dtype: torch.dtype, dim: int, device: int) -> int:
    """The kernel that torch chooses for such tensors, asked with some that exist."""
    example = torch.zeros(1, 1, 128, dim, dtype=dtype, device=torch.device("cuda", device), requires_grad=True)
    return int(torch._fused_sdp_choice(example, example, example, is_causal=True))


CUDNN = 3  # the number that torch has for cuDNN's kernels; one is for flash attention's
PROGRAMS = 1056  # as attention.cpp has it: the sums of segments are of so many of them, or of one for each head


def _fake_forward(query: Tensor, key: Tensor, value: Tensor, backend: int, *rest: Any) -> tuple[Tensor, ...]:
    dropout, scale, alpha, gamma = rest
    three, options = (query, key, value), (dropout, True, False)  # causal, and without a matrix for debugging
    if backend == CUDNN:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(*three, None, True, *options, scale=scale)  # noqa: FBT003
    else:
        found = torch.ops.aten._scaled_dot_product_flash_attention(*three, *options, scale=scale)
    output = found[0]
    if alpha or not 0 <= gamma <= 1:  # the plain output is kept
        return output, found[1], found[6], found[7], torch.empty_like(output)
    batch, heads, _, dim = output.shape
    sums = output.new_empty(torch.sym_max(PROGRAMS, batch * heads) * dim, dtype=torch.float32)
    return output, found[1], found[6], found[7], sums


def _fake_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:  # noqa: ARG001
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


_FAKES: dict[str, Callable[..., Any]] = {"attend_forward": _fake_forward, "attend_backward": _fake_backward}
