"""How the library of attention without its gap is found, loaded, described and told from others; no kernel runs."""

import types

import pytest

torch = pytest.importorskip("torch")

from bulkedge.nn import native  # noqa: E402


@pytest.fixture
def built(monkeypatch, tmp_path):
    """A library that is there, and what is done with it."""
    done, path = [], tmp_path / "library.so"
    path.touch()
    monkeypatch.setattr(native, "library", lambda: path)
    monkeypatch.setattr(native.Library, "loaded", False)
    monkeypatch.setattr(native.Library, "described", False)
    monkeypatch.setattr(
        torch.library, "register_fake", lambda name, _: done.append(name.removeprefix("bulkedge_native::"))
    )
    return done


@pytest.mark.parametrize("there", [True, False], ids=["the builder has loaded it", "nobody has"])
def test_its_operators_are_described_once(built, monkeypatch, there):
    """However often it is asked for, and whoever loaded it: compilers need the description."""
    place = types.SimpleNamespace(attend=None) if there else types.SimpleNamespace()
    monkeypatch.setattr(torch.ops, "bulkedge_native", place, raising=False)
    monkeypatch.setattr(torch.ops, "load_library", lambda _: None)
    for _ in range(3):
        monkeypatch.setattr(native.Library, "loaded", False)
        assert native.load()
        assert native.Library.loaded
    assert built == ["attend_forward", "attend_backward"]


def test_a_library_that_is_broken_is_said_and_not_used(built):
    with pytest.warns(RuntimeWarning, match="builds it again"):
        assert not native.load()
    assert not native.Library.loaded
    assert not built


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
