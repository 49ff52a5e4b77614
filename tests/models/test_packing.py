"""What a scan's page carries: every number to four digits, medians over texts, pictures, and what the columns mean."""

import base64
import json
import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scans import LEVELS, made_up_scan

from bulkedge.heads.measures.attention_measures import MEASURES
from bulkedge.models.scanning.glossary import COLUMNS, GROUPS, KINDS, describe, kind_of
from bulkedge.models.scanning.page import (
    check_scan,
    digits,
    embed_json,
    kinds,
    numbers,
    over_texts,
    pack_scan,
    pictures,
    reorder,
)
from bulkedge.models.scanning.random_heads import TESTED
from bulkedge.models.scanning.results import PREDICTED
from bulkedge.support.errors import DomainError

ANY = st.floats(allow_nan=True, allow_infinity=True)


def refused(name):
    raise AssertionError(f"{name} is not JSON")


@given(st.lists(ANY))
def test_numbers_come_back_to_four_digits(values):
    back = json.loads(embed_json(digits(values)), parse_constant=refused)
    for value, found in zip(values, back, strict=True):
        if math.isnan(value):
            assert found is None
        elif math.isinf(value):
            assert float(found) == value
        else:
            # half a unit of the fourth digit, which subnormal numbers do not have
            assert abs(found - value) <= max(5.001e-4 * abs(value), 5e-324)


@given(st.text(alphabet=st.sampled_from("<>/&'\"\\\nscript\u2028\ud800🦖")))
def test_texts_come_back_and_end_no_element(text):
    found = embed_json({"text": text})
    assert json.loads(found) == {"text": text}
    assert found.isascii()
    assert not set("<>&\n") & set(found)


@given(
    st.lists(
        st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6)), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
def test_medians_over_texts_are_those_of_the_numbers_there(rows):
    found = over_texts(xr.DataArray(np.array(rows), dims=("text", "item")))
    for column, value in zip(np.array(rows).T, found, strict=True):
        there = column[~np.isnan(column)]
        assert np.isnan(value) if not there.size else value == pytest.approx(np.median(there), rel=1e-12, abs=1e-300)


def test_positions_of_an_even_number_of_texts_are_positions():
    offsets = xr.DataArray([[-1.0, -2.0], [-4.0, np.nan]], dims=("text", "item"), name="offset")
    assert over_texts(offsets).tolist() == [-4.0, -2.0]


@pytest.mark.parametrize("texts", [1, 3])
def test_every_number_of_a_scan_is_carried(texts):
    data = made_up_scan(2, 3, texts)
    carried = json.loads(embed_json(pack_scan(data, 1)), parse_constant=refused)
    for name, variable in data.data_vars.items():
        if set(variable.dims) != {"text", "item"}:
            continue
        values = variable.values if name != "sink_position" else np.where(variable < 0, -1.0, variable)
        expected = np.median(values, axis=0)
        found = np.array([np.nan if each is None else each for each in carried["values"][name]], dtype=float)
        if name == "sink_position":
            found = np.nan_to_num(found, nan=-1)
        np.testing.assert_allclose(found, expected, rtol=5.001e-4, err_msg=name)
    for factor, column in zip((2, 8, 32), data["scale"].values.T, strict=True):
        np.testing.assert_allclose(carried["values"][f"scale_{factor}"], column, rtol=5.001e-4)
    for name, text in carried["bands"].items():
        found = np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(6, len(LEVELS))
        np.testing.assert_allclose(found, np.median(data[name].values, axis=0), rtol=1e-6)
    assert base64.b64decode(carried["pictures"]) == data["picture"].values.tobytes()
    assert set(carried["low"]) == set(carried["high"]) == ({"beta"} | set(carried["low"]) if texts > 1 else set())
    np.testing.assert_allclose(
        carried["strips"]["token_cosine"], np.median(data["token_cosine"].values, axis=0), rtol=5.001e-4
    )


def test_what_was_not_measured_is_left_out():
    found = numbers(made_up_scan(2, 3, draws=0, probe=False))
    assert not [name for name in found if name in {"p", "q", "induction"} or name.startswith(("p_", "null_beta"))]
    carried = pack_scan(made_up_scan(2, 3, draws=0), 1)
    assert set(carried["bands"]) == {"spectrum"}
    bare = made_up_scan(2, 3)[["beta"]]
    assert set(pack_scan(bare, 1)["values"]) == {"beta"}


@pytest.mark.parametrize("step", [1, 2, 3, 8, 48])
def test_coarser_pictures_hold_the_same_shares_of_attention(step):
    data = made_up_scan(2, 6)
    squares = data["picture"].values.astype(float) ** 2
    blocks = squares.reshape(12, 48 // step, step, 48 // step, step).mean(axis=(2, 4))
    expected = np.sqrt(blocks / blocks.max(axis=(1, 2), keepdims=True))
    assert np.max(np.abs(pictures(data, step) / 255 - expected)) <= 0.5001 / 255


def test_pictures_of_nothing_stay_dark():
    data = made_up_scan(1, 1)
    data["picture"][:] = 0
    assert not pictures(data, 2).any()


def test_a_head_has_its_first_kind_first_and_once():
    data = made_up_scan(1, 3)
    data["kind"] = "item", np.array(["sink", "content", ""], dtype=object)
    data["kinds"] = "item", np.array(["offset, sink", "content", ""], dtype=object)
    assert kinds(data) == [["sink", "offset"], ["content"], []]


def test_scans_that_no_page_can_be_made_of_are_refused():
    data = made_up_scan(2, 3)
    with pytest.raises(DomainError, match="coordinates layer and head"):
        check_scan(data.drop_vars("head"))
    with pytest.raises(DomainError, match=r"each \(layer, head\) once"):
        check_scan(data.isel(item=[0, 0]))
    with pytest.raises(DomainError, match="at least one head"):
        check_scan(data.isel(item=[]))
    with pytest.raises(DomainError, match="2 of them are in one only"):
        reorder(made_up_scan(2, 3).isel(item=slice(4)), data)


def test_another_scan_is_brought_into_the_order_of_the_first():
    data, order = made_up_scan(2, 3), [5, 3, 4, 0, 2, 1]
    xr.testing.assert_identical(reorder(data.isel(item=order), data), data)


# -- what the columns mean ---------------------------------------------------------------------------------------------


def test_every_column_of_a_scan_is_described():
    for name in ["kind", *numbers(made_up_scan())]:
        title, group, _, sentence = describe(name)
        assert title
        assert group in GROUPS
        assert group != "other", name
        assert sentence.endswith("."), name


def test_every_number_that_is_measured_predicted_or_tested_is_described():
    names = [*MEASURES, *PREDICTED, *(f"{start}_{name}" for name in TESTED for start in ("p", "null"))]
    assert [name for name in names if describe(name).group == "other"] == []
    assert [name for name in MEASURES if describe(name).sentence != MEASURES[name]] == []


def test_titles_tell_columns_apart():
    names = ["kind", *numbers(made_up_scan())]
    assert len({describe(name).title for name in names}) == len(names)


def test_a_column_that_nobody_described_has_its_name():
    assert describe("made_up_number") == ("made up number", "other", "", "")
    assert kind_of("made up").title == "made up"


def test_a_random_spectrum_is_never_called_untrained():
    said = [*KINDS.values(), *COLUMNS.values()]
    sentences = [sentence for each in said for sentence in each.sentence.split(". ") if "untrained" in sentence]
    assert sentences
    assert all("does not " in sentence for sentence in sentences)
    assert KINDS["random spectrum"].title == "spectrum as random weights"
    assert "does not mean untrained" in KINDS["random spectrum"].sentence
