"""Files of checkpoints: every type and format gives the same numbers, and damaged or hostile ones are refused."""

import json
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import LLAMA, write_config, write_llama, write_shards, write_tensors
from hypothesis import given
from hypothesis import strategies as st

from bulkedge.models.circuits.checkpoints import open_checkpoint, stored_tensors
from bulkedge.support.errors import BulkedgeError, DomainError, MissingPackageError, StoreError

PARTS = [(slice(None), slice(None)), (slice(2, 5), slice(None)), (slice(None), slice(1, 4)), (slice(0, 1), slice(3, 4))]


@pytest.fixture
def folder(tmp_path):
    write_config(tmp_path, **LLAMA)
    return tmp_path


@pytest.mark.parametrize(("dtype", "digits"), [("F64", 0), ("F32", 2**-24), ("F16", 2**-11), ("BF16", 2**-7)])
def test_every_type_is_read_to_its_own_precision(folder, dtype, digits):
    matrix = np.random.default_rng(0).standard_normal((6, 5))
    write_tensors(folder / "model.safetensors", {"first": np.ones(3), "a": matrix}, dtype)
    found = open_checkpoint(folder)
    for part in PARTS:
        np.testing.assert_allclose(found.read("a", *part), matrix[part], rtol=digits, atol=0)
    assert found.read("a").dtype == (np.float64 if dtype == "F64" else np.float32)


def test_the_package_of_the_format_reads_the_same(folder):
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    matrix = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    tensors = {str(k): matrix.to(each) for k, each in enumerate(types)} | {"odd": torch.ones(3, dtype=torch.uint8)}
    safetensors.save_file(tensors, folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    for file, (name, rows) in product(("model.safetensors", "pytorch_model.bin"), enumerate(PARTS)):
        found = open_checkpoint(folder / file)
        wanted = tensors[str(name)].double().numpy()
        np.testing.assert_array_equal(found.read(str(name)), wanted)
        np.testing.assert_array_equal(found.read(str(name), *rows), wanted[rows])
        with pytest.raises(DomainError, match="dequantised"):
            found.read("odd")


def test_shards_of_both_formats_are_one_checkpoint(folder):
    torch = pytest.importorskip("torch")
    tensors = {name: np.full((2, 3), k) for k, name in enumerate("abcd")}
    halves = [{name: tensors[name] for name in names} for names in ("ab", "cd")]
    write_shards(folder, halves)
    places = {}
    for k, half in enumerate(halves):
        torch.save({name: torch.tensor(each, dtype=torch.float32) for name, each in half.items()}, folder / f"{k}.bin")
        places |= dict.fromkeys(half, f"{k}.bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    for path in (folder, folder / "pytorch_model.bin.index.json"):
        found = open_checkpoint(path)
        assert {name: found.read(name)[0, 0] for name in "adbc"} == {"a": 0, "b": 1, "c": 2, "d": 3}


@pytest.mark.parametrize("name", ["../up.safetensors", "/etc/x.safetensors", "a/../../x.bin", "C:\\x.bin", "..\\x.bin"])
def test_an_index_cannot_leave_its_folder(folder, name):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(StoreError, match="outside its folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("[1]", "an object is expected"),
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("{}", "weight_map"),
        ('{"weight_map": {"a": "absent.safetensors"}}', "not there"),
        ('{"weight_map": {"a": "run.py"}}', "neither"),
        ('{"weight_map": {"missing": "part.safetensors"}}', "not in its files"),
        ('{"weight_map": {"a": "part.safetensors", "b": "other.bin"}}', "several formats"),
    ],
)
def test_a_damaged_index_is_refused(folder, index, says):
    write_tensors(folder / "part.safetensors", {"a": np.ones((2, 2))})
    (folder / "other.bin").write_bytes(b"")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(StoreError, match=says):
        open_checkpoint(folder / "model.safetensors.index.json")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="has none of"):
        open_checkpoint(tmp_path)
    write_tensors(tmp_path / "other.safetensors", {"a": np.ones((2, 2))})
    with pytest.raises(StoreError, match=r"no config\.json"):
        open_checkpoint(tmp_path)
    write_config(tmp_path, **LLAMA)
    assert open_checkpoint(tmp_path).read("a").sum() == 4
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")
    with pytest.raises(StoreError, match="ends neither"):
        open_checkpoint(tmp_path / "weights.gguf")


def test_pickles_are_not_run(folder, monkeypatch):
    pytest.importorskip("torch")
    import pickle

    class Hostile:
        def __reduce__(self):
            return (folder.joinpath("run").touch, ())

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Hostile()}))
    with pytest.raises(StoreError, match="cannot be read without running code"):
        open_checkpoint(folder)
    assert not (folder / "run").exists()
    monkeypatch.setattr("bulkedge.support.errors.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="needs torch"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "content", [b"", b"\x02\0\0", b"\x01" + b"\0" * 7 + b"{}", b"\x03" + b"\0" * 7 + b"{}", b"\xff" * 10]
)
def test_a_header_is_not_read_beyond_its_file(content):
    """Nor beyond a size that fits into memory, whatever the file has."""
    file = Path("model.safetensors")
    with pytest.raises(StoreError, match=rf"is no safetensors file: it has {len(content)} bytes and announces"):
        stored_tensors(BytesIO(content), len(content), file)
    whole = b"\x02" + b"\0" * 7 + b"{}"
    assert stored_tensors(BytesIO(whole), 10, file) == {}
    with pytest.raises(StoreError, match="announces 2 of header"):
        stored_tensors(BytesIO(whole), 10, file, most=1)


def test_numbers_that_are_none_are_refused(folder):
    write_tensors(folder / "model.safetensors", {"a": np.array([[1.0, np.nan]]), "b": np.ones((1, 1, 2))})
    found = open_checkpoint(folder)
    assert found.read("a", columns=slice(0, 1)) == [[1.0]]
    with pytest.raises(DomainError, match="not finite"):
        found.read("a")
    with pytest.raises(DomainError, match="shape"):
        found.read("b")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_llama(folder, np.random.default_rng(0), layers=1)
    return folder


@given(st.data())
def test_a_damaged_file_gives_an_error_of_ours_or_the_numbers(whole, data):
    """Bytes of the length and the header changed, or the end cut off: never another exception, never a read outside."""
    file = whole / "model.safetensors"
    text = bytearray(file.read_bytes())
    size = 8 + int.from_bytes(text[:8], "little")
    for place in data.draw(st.lists(st.integers(0, size - 1), max_size=3)):
        text[place] = data.draw(st.integers(0, 255))
    text = text[: data.draw(st.sampled_from([len(text), len(text) - 1, size, size - 1, 9, 8, 3, 0]))]
    damaged = whole / "damaged.safetensors"
    damaged.write_bytes(text)
    try:
        found = open_checkpoint(damaged)
        shapes = {name: found.read(name).shape for name in found.tensors}
    except BulkedgeError:
        return
    assert all(found.tensors[name].shape == shape for name, shape in shapes.items())
