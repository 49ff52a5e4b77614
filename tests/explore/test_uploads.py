"""Files that a reader drops on the page, most of them hostile, and what is found in the others."""

import io
import json
import struct
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge import diagnose
from bulkedge.inference.diagnosis import tail
from bulkedge.lab.explore.matrix import (
    content,
    curves_of,
    decoder_attention,
    fit_head,
    loading_code,
    p_text,
    report_fit,
    script,
)
from bulkedge.lab.matrix_files import MOST_CHOICES, PAGE, choices, matrices, tensors
from bulkedge.lab.matrix_files import read_matrix as matrix
from bulkedge.support.errors import DomainError


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def npz(**arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, start, stop, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


SQUARE = np.arange(400, dtype=np.float32).reshape(20, 20)


WHOLE = {
    "a.npy": npy(SQUARE),
    "a.safetensors": safetensors({"a": entry([20, 20], 0, 1600)}, SQUARE.tobytes()),
    "a.npz": npz(a=SQUARE),
    "a.csv": "\n".join(", ".join(map(str, row)) for row in SQUARE.tolist()).encode(),
}


class Payload:
    """Would write a file if it were unpickled."""

    def __reduce__(self):
        return (open, ("pwned", "w"))


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", "<i4", "|b1", ">f8"])
def test_arrays_of_numbers_are_read(dtype):
    array = (SQUARE % 2).astype(dtype)
    assert np.array_equal(matrix("a.npy", npy(array)), array.astype(float))


@pytest.mark.parametrize("order", ["C", "F"])
def test_both_orders_of_memory_are_read(order):
    array = np.asarray(SQUARE, order=order)
    assert np.array_equal(matrix("a.NPY", npy(array)), SQUARE)


def test_tensors_are_read_by_name_and_bfloat16_too():
    upper = (SQUARE.view(np.uint32) >> 16).astype("<u2")
    data = SQUARE.tobytes() + upper.tobytes()
    header = {
        "__metadata__": {"a": "b"},
        "first": entry([20, 20], 0, 1600),
        "half": entry([1, 20, 20], 1600, 2400, "BF16"),
    }
    file = safetensors(header, data)
    assert tensors("w.safetensors", file) == {"first": (20, 20), "half": (1, 20, 20)}
    assert np.array_equal(matrix("w.safetensors", file), SQUARE)
    assert np.allclose(matrix("w.safetensors", file, "half"), SQUARE, rtol=2**-7)


@pytest.mark.parametrize(
    ("stored", "dtype"), [("I8", "i1"), ("I64", "<i8"), ("U8", "u1"), ("BOOL", "?"), ("F64", "<f8")]
)
def test_tensors_of_whole_numbers_are_read(stored, dtype):
    array = (SQUARE % 2).astype(dtype)
    file = safetensors({"a": entry([20, 20], 0, array.nbytes, stored)}, array.tobytes())
    assert np.array_equal(matrix("a.safetensors", file), array.astype(float))


@pytest.mark.parametrize("name", WHOLE)
def test_every_kind_of_file_holds_the_matrix(name):
    assert np.array_equal(matrix(name, WHOLE[name]), SQUARE)


@pytest.mark.parametrize("text", ["1;2\n3;4\n", "1\t2\n\n3\t4", " 1  2\n3 4", "\ufeff1,2\r\n3,4"])
def test_tables_have_their_separators(text):
    assert matrix("a.csv", text.encode(), limits=PAGE._replace(smallest=2)).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_archives_that_unpack_to_more_than_is_read_are_refused():
    small = PAGE._replace(bytes=4000)
    with pytest.raises(DomainError, match="arrays of the file are larger"):
        matrix("a.npz", npz(a=np.zeros((100, 100))), limits=small)


def test_a_matrix_is_chosen_from_a_stack():
    stack = np.arange(1 * 2 * 3 * 20 * 20, dtype=float).reshape(1, 2, 3, 20, 20)
    file = npy(stack)
    assert choices("heads.npy", file)[:2] == ["heads.npy[0, 0]", "heads.npy[0, 1]"]
    assert len(choices("heads.npy", file)) == 6
    assert np.array_equal(matrix("heads.npy", file), stack[0, 0, 0])
    assert np.array_equal(matrix("heads.npy", file, "heads.npy[1, 2]"), stack[0, 1, 2])
    for bad in ("heads.npy[2, 0]", "heads.npy[-1, 0]", "heads.npy", "heads.npy[0]"):
        with pytest.raises(DomainError):
            matrix("heads.npy", file, bad)
    for claimed in ([10**9, 0, 20, 20], [10**18, 20, 20, 0], [0, 20, 20]):  # no bytes, and so many indices
        with pytest.raises(DomainError, match="a matrix of 16 to 2048"):
            matrix("a.safetensors", safetensors({"a": entry(claimed, 0, 0)}))
    names = {"a": (20, 20), "a[0]": (20, 20), "b": (2, 20, 20), "many": (10**9, 20, 20)}
    assert list(matrices(names))[:4] == ["a", "a[0]", "b[0]", "b[1]"]
    assert len(matrices(names)) == MOST_CHOICES


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("evil.npy", npy(np.array([[Payload()]], dtype=object), allow_pickle=True), "not numbers"),
        ("text.npy", npy(np.array([["a"] * 20] * 20)), "not real numbers$"),
        ("complex.npy", npy(np.ones((20, 20), complex)), "send the real part"),
        ("short.npy", npy(SQUARE)[:-4], "not what it holds"),
        ("long.npy", npy(SQUARE) + b"more", "not what it holds"),
        ("huge.npy", npy(SQUARE).replace(b"(20, 20)", b"(9**99, )"), r"\.npy"),
        ("version.npy", b"\x93NUMPY\x09\x00" + npy(SQUARE)[8:], r"\.npy"),
        ("empty.npy", b"", r"no \.npy"),
        ("vector.npy", npy(np.ones(400)), "16 to 2048"),
        ("small.npy", npy(np.ones((3, 3))), "16 to 2048"),
        ("large.npy", npy(np.ones((16, 2049), np.float16)), "16 to 2048"),
        ("nan.npy", npy(np.full((20, 20), np.nan)), "NaN or infinite"),
        ("matrix.pkl", b"", "none of .npy"),
        ("matrix.npz", b"PK", "no .npz"),
        ("empty.npz", npz(), "no array"),
        ("evil.npz", npz(a=np.array([[Payload()]], dtype=object)), "not numbers"),
        ("names.csv", b"a,b\n1,2", "line 1, column 1 of 'names.csv' is 'a', not a number"),
        ("ragged.csv", b"1,2\n1,2,3", "line 2 of 'ragged.csv' has 3 numbers, the first 2"),
        ("empty.csv", b" \n", "is empty"),
        ("binary.csv", b"\xff\xfe\x00", "not text in UTF-8"),
        ("a.safetensors", b"", "of header"),
        ("a.safetensors", struct.pack("<Q", 2**62) + b"{}", "of header"),
        ("a.safetensors", safetensors(b"not json"), "not JSON"),
        ("a.safetensors", safetensors(b"[" * 100_000), "not JSON"),
        ("a.safetensors", safetensors([]), "an object is expected"),
        ("a.safetensors", safetensors({}), "no tensor"),
        ("a.safetensors", safetensors({"a": entry([20, 20], 0, 1600)}), "lies at"),
        ("a.safetensors", safetensors({"a": entry([20, 20], 0, 800)}, bytes(1600)), "has 800 bytes"),
        ("a.safetensors", safetensors({"a": entry([20, -20], 0, 1600)}, bytes(1600)), "lies at"),
        ("a.safetensors", safetensors({"a": entry([20, 20], -8, 1592)}, bytes(1600)), "lies at"),
        ("a.safetensors", safetensors({"a": {"shape": 3}}), "is described as"),
        ("a.safetensors", safetensors({"a": entry([20, 20], 0, 400, "F8_E4M3")}, bytes(400)), "no tensor"),
    ],
)
def test_hostile_files_are_refused_with_the_reason(name, data, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DomainError, match=message):
        matrix(name, data)
    assert list(tmp_path.iterdir()) == []  # nothing ran, nothing was written


def test_tensors_that_are_not_there():
    with pytest.raises(DomainError, match="is not in the file"):
        matrix("w.safetensors", safetensors({"a": entry([20, 20], 0, 1600)}, bytes(1600)), "b")


@given(st.binary(max_size=400), st.sampled_from(["a.npy", "a.safetensors", "a.npz", "a.csv"]), st.booleans())
def test_any_bytes_are_a_matrix_or_refused(data, name, prefixed):
    whole = WHOLE[name]
    try:
        found = matrix(name, whole[: len(whole) // 2] + data if prefixed else data)
    except DomainError:
        return
    assert found.ndim == 2


@given(st.integers(0, 200), st.integers(0, 255), st.sampled_from(["a.npy", "a.safetensors", "a.npz", "a.csv"]))
def test_files_with_one_byte_changed_are_a_matrix_or_refused(place, value, name):
    whole = WHOLE[name]
    changed = bytearray(whole)
    changed[place] = value
    try:
        found = matrix(name, bytes(changed))
    except DomainError:
        return
    assert found.ndim == 2


def test_what_browsers_send():
    assert content("data:application/octet-stream;base64," + b64encode(b"abc").decode()) == b"abc"
    with pytest.raises(DomainError, match="did not arrive whole"):
        content("data:,%%%")
    with pytest.raises(DomainError, match="64 MB"):
        content("data:," + "A" * (PAGE.bytes * 4 // 3 + 100))
    with pytest.raises(DomainError, match="64 MB"):
        tensors("a.npy", bytes(PAGE.bytes + 1))


# -- fits --------------------------------------------------------------------------------------------------------------


def test_attention_is_recognised_and_its_beta_and_dimension_found():
    found = diagnose(be.SoftmaxAttention(300, 48, 0.8, qk_norm=True).sample(np.random.default_rng(0)))
    assert found.kind == "attention"
    assert found.beta == pytest.approx(0.8, rel=0.02)
    assert found.head_dim == pytest.approx(48, rel=0.08)
    assert found.candidates[0].name == "FiniteHeadLaw, normalised queries and keys"
    assert found.candidates[0].distance < 0.025
    assert "too far" not in found.verdict


@pytest.mark.slow
def test_causal_attention_is_recognised():
    head = be.SoftmaxAttention(300, 64, 0.7, mask="causal")
    scores = 0.7 * head.scores(np.random.default_rng(1))
    weights = np.exp(scores) * np.tri(300)
    found = diagnose(weights / weights.sum(axis=1, keepdims=True))
    block = scores[150:, :150]
    centred = block - block.mean(axis=1, keepdims=True)
    centred -= centred.mean(axis=0)
    assert found.kind == "causal attention"
    # the spread of this draw's own scores; mean squared lengths of 150 queries and keys in 64 dimensions move it by
    # sqrt(2/(64 * 150))/2 each, or 1 % together, about that of all draws
    assert found.beta == pytest.approx(np.sqrt(np.sum(centred**2)) / 149, rel=1e-9)
    assert found.beta == pytest.approx(0.7, rel=0.04)
    assert found.candidates[0].name.startswith("CausalHeadLaw")


def test_a_planted_direction_stands_out_of_noise():
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((200, 300))
    found = diagnose(noise)
    assert found.kind == "matrix"
    assert found.candidates[0].name.startswith("MarchenkoPastur")
    assert found.outliers == []
    planted = diagnose(noise + 2.5 * np.outer(rng.standard_normal(200), rng.standard_normal(300)) / np.sqrt(200) * 2)
    assert len(planted.outliers) == 1
    assert planted.outliers[0].p_value < 1e-6


def test_products_are_told_from_noise():
    rng = np.random.default_rng(3)
    found = diagnose(rng.standard_normal((150, 150)) @ rng.standard_normal((150, 150)))
    assert found.candidates[0].name.startswith("ProductLaw")


def test_what_is_no_matrix_is_refused():
    for bad in (np.ones(3), np.ones((1, 5)), [[np.nan] * 3] * 3, "a"):
        with pytest.raises(DomainError):
            diagnose(bad)


def test_a_constant_matrix_has_no_law_near():
    report = report_fit(diagnose(np.full((30, 30), 1 / 30)))
    assert report.facts["kind"] == "attention"


def test_p_values_are_those_of_tracy_and_widom():
    law = be.MarchenkoPastur(0.5)
    assert tail(law, 400, law.finite_edge(400, 0.01)) == pytest.approx(0.01, rel=1e-6)
    with pytest.warns(be.RegimeWarning, match="its edge is not calibrated"):
        assert np.isnan(tail(be.CausalLaw(1.0), 100, 5.0))
    assert p_text(0.5) == "0.5"


def test_the_python_of_a_fit_runs(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(4)
    name = 'it\'s "mine".npy'
    (tmp_path / name).write_bytes(npy(rng.standard_normal((40, 60))))
    monkeypatch.chdir(tmp_path)
    exec(compile(script(loading_code(name, None)), "made", "exec"), {})  # noqa: S102 - what readers run
    assert "MarchenkoPastur" in capsys.readouterr().out
    assert (tmp_path / "matrix.png").exists()
    with pytest.raises(DomainError):
        loading_code("a" * 300, None)


@pytest.mark.slow
def test_heads_of_the_embedded_decoder_are_read(monkeypatch):
    default = pytest.importorskip("bulkedge.models.loading.default")
    begun = default.default_model(trained=False)  # training it takes half a minute
    monkeypatch.setattr(default, "default_model", lambda: begun)
    decoder_attention.cache_clear()
    found = fit_head(0, 1)
    decoder_attention.cache_clear()
    assert found.facts["kind"] == "causal attention"
    assert found.laws
    with pytest.raises(DomainError):
        fit_head(0, 4)


def test_the_curves_of_a_fit_are_densities():
    _, curves = curves_of(diagnose(np.random.default_rng(5).standard_normal((100, 120))))
    bars = curves[0]
    assert np.sum(bars.y * np.diff(np.log(bars.x))) == pytest.approx(0.98, abs=0.03)
