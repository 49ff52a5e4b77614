"""How the library of attention without its gap is built, found, refused and described; no kernel runs."""

import importlib.util
import os
import types
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bulkedge.nn import native  # noqa: E402
from bulkedge.support.files import seal  # noqa: E402


@pytest.fixture
def done(monkeypatch, tmp_path):
    """What is loaded and described; nobody has looked for a library yet."""
    done = types.SimpleNamespace(loaded=[], described=[])
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setattr(native.Library, "loaded", None)
    monkeypatch.setattr(native.Library, "described", False)
    monkeypatch.setattr(native.Library, "build", "")
    monkeypatch.setattr(torch.ops, "load_library", done.loaded.append)
    monkeypatch.setattr(
        torch.library, "register_fake", lambda name, _: done.described.append(name.removeprefix("bulkedge_native::"))
    )
    return done


@pytest.fixture
def built(done):
    """The path of a library that is there, as it is built."""
    path = native.library()
    path.parent.mkdir(parents=True, mode=0o700)
    path.parent.parent.chmod(0o700)
    path.write_bytes(b"a library" * 100)
    seal(path.parent, native.SEAL, {"files": [path.name]})
    for each in path.parent.iterdir():
        each.chmod(0o600)
    return path


def found():
    return native.look() and native.Library.loaded


@pytest.mark.parametrize("there", [True, False], ids=["the builder has loaded it", "nobody has"])
def test_its_operators_are_described_once(built, done, monkeypatch, there):
    """However often it is asked for, and whoever loaded it: compilers need the description."""
    place = types.SimpleNamespace(attend=None) if there else types.SimpleNamespace()
    monkeypatch.setattr(torch.ops, "bulkedge_native", place, raising=False)
    for _ in range(3):
        monkeypatch.setattr(native.Library, "loaded", None)
        assert found()
        assert native.Library.loaded
    assert done.described == ["attend_forward", "attend_backward"]
    assert done.loaded == [str(built)] * 3


def test_importing_loads_nothing_and_the_first_call_looks_once(built, done, monkeypatch):
    spec = importlib.util.spec_from_file_location("another", native.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert done.loaded == []
    for _ in range(2):
        assert found()
    assert done.loaded == [str(built)]
    monkeypatch.setattr(native.Library, "loaded", False)  # switched off by whoever compares
    assert not found()


def other_owner(path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)


HARM = {
    "cut": lambda path, _: path.write_bytes(path.read_bytes()[:450]),
    "empty": lambda path, _: path.write_bytes(b""),
    "another": lambda path, _: path.write_bytes(b"another !" * 100),
    "no checksum": lambda path, _: (path.parent / native.SEAL).unlink(),
    "file of a group": lambda path, _: path.chmod(0o620),
    "folder of everybody": lambda path, _: path.parent.chmod(0o777),
    "cache of everybody": lambda path, _: path.parent.parent.chmod(0o1777),
    "checksum of everybody": lambda path, _: (path.parent / native.SEAL).chmod(0o666),
    "somebody else's": other_owner,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by torch itself
def test_compilers_look_once_too_and_notice_when_it_is_switched_off(built, done, monkeypatch):
    @torch.compile(backend="eager", fullgraph=True)
    def used(value):
        return value + 1 if native.look() and native.Library.loaded else value

    torch._dynamo.reset()
    assert [int(used(torch.zeros(1))) for _ in range(2)] == [1, 1]
    assert done.loaded == [str(built)]
    monkeypatch.setattr(native.Library, "loaded", False)
    assert int(used(torch.zeros(1))) == 0
    monkeypatch.setattr(native.Library, "loaded", True)  # built meanwhile
    assert int(used(torch.zeros(1))) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("harm", HARM)
def test_a_library_that_is_not_ones_own_or_not_what_was_built_is_not_loaded(built, done, monkeypatch, harm):
    HARM[harm](built, monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"the built kernels are not used: .*build_kernels\(\) builds them again"):
        assert not found()
    assert (native.Library.loaded, done.loaded, done.described) == (False, [], [])


def test_a_library_that_torch_refuses_is_said_and_not_used(built, done, monkeypatch):
    def refuse(path):
        raise OSError(f"{path}: undefined symbol")

    monkeypatch.setattr(torch.ops, "load_library", refuse)
    with pytest.warns(RuntimeWarning, match=r"undefined symbol.*builds them again"):
        assert not found()
    assert (native.Library.loaded, done.described) == (False, [])


def test_without_a_home_nothing_is_looked_for_where_one_happens_to_be(done, monkeypatch, tmp_path):
    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert not found()
    assert done.loaded == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(native.BuildError, match="set TORCH_EXTENSIONS_DIR to an absolute path"):
        native.build_kernels()


@pytest.mark.parametrize("there", [False, True], ids=["nothing", "a damaged one"])
def test_it_is_built_elsewhere_and_put_in_its_place_when_it_is_whole(done, request, monkeypatch, there):
    path, seen = request.getfixturevalue("built") if there else native.library(), []

    def build(name, _sources, *, build_directory, **_):
        seen.append(path.exists() and path.read_bytes())
        assert Path(build_directory) != path.parent
        (Path(build_directory) / f"{name}.so").write_bytes(b"new")
        (Path(build_directory) / "attention.o").write_bytes(b"")

    if there:
        path.write_bytes(b"damaged")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("torch.utils.cpp_extension.load", build)
    with pytest.warns(RuntimeWarning, match="not used") if there else nullcontext():
        assert native.build_kernels() == path
    assert (seen, path.read_bytes(), native.Library.loaded) == ([b"damaged" if there else False], b"new", True)
    assert [each.name for each in path.parent.parent.iterdir()] == [path.parent.name]
    monkeypatch.setattr(native.Library, "loaded", None)
    assert found()
    assert done.loaded == [str(path)]


def test_a_build_that_fails_leaves_nothing(done, monkeypatch):
    def build(*_, build_directory, **__):
        (Path(build_directory) / "attention.o").write_bytes(b"")
        raise RuntimeError("no nvcc")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("torch.utils.cpp_extension.load", build)
    with pytest.raises(native.BuildError, match=r"(?s)no nvcc.*needed are"):
        native.build_kernels()
    assert list(native.library().parent.parent.iterdir()) == []


def test_what_it_needs_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(native.BuildError, match="no GPU"):
        native.build_kernels()


def test_a_library_is_for_its_sources_and_its_torch(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    before = native.library()
    assert before.is_relative_to(tmp_path)
    monkeypatch.setattr(torch, "__version__", "0.0")
    other = native.library()
    monkeypatch.setattr(native, "SOURCES", native.SOURCES[:1])
    assert len({before, other, native.library()}) == 3
