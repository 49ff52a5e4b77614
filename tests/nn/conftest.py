"""What tests of the library's kernels share: the kernels on a processor, compiled once."""

import pytest


@pytest.fixture(scope="session")
def compile_means(tmp_path_factory):
    """Compile a text of ``means.cu``; the result is the path of a shared library."""
    from kernels_on_cpu import compile_kernels, missing
    from torch.utils import cpp_extension

    from bulkedge.nn import native

    if missing():
        pytest.skip(missing())
    headers = [native.SOURCES[0].parent, *cpp_extension.include_paths()]
    return lambda source: compile_kernels(source, headers, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def means(compile_means):
    """The kernels as they are."""
    from bulkedge.nn import native

    return compile_means(native.SOURCES[1].read_text(encoding="utf-8"))
