"""Messages are read without trust: whatever the bytes say, the answer is the tensor that was sent or one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import accord
from accord.flower.wire import config, exact, header, listing, pack, parted, plain, states, unpack, value

KINDS = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@settings(max_examples=60)
@given(st.data())
def test_every_tensor_arrives_bit_for_bit(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    shape = data.draw(st.one_of(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    sent = torch.from_numpy(np.array(data.draw(arrays(kind, shape))))
    found = unpack(pack({"a name/0": sent}))["a name/0"]
    assert found.dtype == sent.dtype
    assert found.shape == sent.shape
    assert found.numpy().tobytes() == sent.numpy().tobytes()


def test_what_is_packed_is_what_numpy_writes() -> None:
    """So that any other program of the federation can read it."""
    sent = torch.arange(6.0).reshape(2, 3)
    assert pack({"w": sent})["w"].numpy().tolist() == sent.tolist()
    assert unpack(ArrayRecord({"w": Array(sent.numpy())}))["w"].tolist() == sent.tolist()


@settings(max_examples=300)
@given(
    st.sampled_from([*KINDS, "object", "complex64", "", "float32\x00", "U9", "V8", "<f4", "datetime64"]),
    st.lists(st.integers(-3, 2**70), max_size=4),
    st.sampled_from(["numpy.ndarray", "pickle", "", "torch"]),
    st.one_of(
        st.binary(max_size=300), st.builds(lambda n, tail: header("float32", (n,)) + tail, st.integers(0, 9), st.binary(max_size=40))
    ),
)
def test_bytes_of_a_stranger_are_a_tensor_or_one_sentence(kind: str, shape: list[int], stype: str, data: bytes) -> None:
    record = ArrayRecord({"w\x1b[31m": Array(kind, tuple(shape), stype, data)})
    try:
        found = unpack(record)
    except ValueError as error:
        found, why = {}, str(error)
        assert why.isprintable()
    if not found:
        return
    (tensor,) = found.values()
    assert data == header(kind, shape) + tensor.numpy().tobytes()


def test_a_shape_that_would_fill_the_memory_is_refused_before_anything_is_made() -> None:
    array = Array("float32", (2**39, 2**39), "numpy.ndarray", header("float32", (2**39, 2**39)) + b"1234")
    with pytest.raises(ValueError, match="bytes that are no float32 array"):
        unpack(ArrayRecord({"w": array}))


def test_bytes_that_are_no_bool_are_refused() -> None:
    with pytest.raises(ValueError, match="no bool array"):
        unpack(ArrayRecord({"w": Array("bool", (2,), "numpy.ndarray", header("bool", (2,)) + b"\x01\x07")}))


def test_types_that_cannot_travel_are_named() -> None:
    with pytest.raises(ValueError, match="w is of type bfloat16, which cannot travel"):
        pack({"w": torch.zeros(2, dtype=torch.bfloat16)})


@pytest.mark.parametrize("record", [None, ConfigRecord(), 3, "text"])
def test_other_records_are_no_arrays(record: object) -> None:
    with pytest.raises(ValueError, match="sent no arrays"):
        unpack(record)


NOTHING = object()


@given(
    st.one_of(st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5), st.booleans(), st.just(NOTHING))
)
def test_a_value_has_the_type_that_it_must_have(sent: Any) -> None:
    record = ConfigRecord() if sent is NOTHING else ConfigRecord({"n": sent})
    for kind in (int, str, float):
        right = type(sent) is kind or (kind is float and type(sent) is int)
        if right:
            assert value(record, "n", kind) == sent  # type: ignore[type-var]
        else:
            with pytest.raises(ValueError, match=f"sent no {kind.__name__} 'n'"):
                value(record, "n", kind)  # type: ignore[type-var]


def test_nan_is_a_number_to_the_wire() -> None:
    assert math.isnan(value(ConfigRecord({"loss": math.nan}), "loss", float))


def test_a_record_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="sent no 'answer'"):
        config(RecordDict(), "answer")


def test_states_are_named_by_part_and_place_and_read_back() -> None:
    algorithm = accord.read("scaffold + perturb(by=proximal) + constrain")
    parts = {part: {"c": torch.ones(2) * at, "d": torch.zeros(())} for at, part in enumerate(algorithm.all_parts)}
    named = states(parts, algorithm)
    assert set(named) == {f"{part.name}/{at}/{n}" for at, part in enumerate(algorithm.all_parts) for n in "cd"}
    found = parted(named, algorithm)
    assert {part: {n: t.tolist() for n, t in state.items()} for part, state in found.items()} == {
        part: {n: t.tolist() for n, t in state.items()} for part, state in parts.items()
    }


@pytest.mark.parametrize(
    "label", ["control/0/c", "stranger/1/c", "c", "", "control/1", "control/01/c", "control/1/c/d", "../../x", "control/-1/c"]
)
def test_states_of_no_part_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="belongs to no part of this recipe"):
        parted({label: torch.zeros(1)}, accord.read("scaffold"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({}, "did not send x w"),
        ({"v": torch.zeros(2)}, "did not send x w; it sent v"),
        ({"w": torch.zeros(2), "v": torch.zeros(2)}, "sent x v, which nobody asked for"),
        ({"w": torch.zeros(3)}, r"sent x w in shape \(3,\) as float32; it is \(2,\) as float32"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, r"as float64; it is \(2,\) as float32"),
        ({"w": torch.zeros(1, 2)}, r"in shape \(1, 2\)"),
    ],
)
def test_names_types_and_shapes_are_exact(sent: dict[str, torch.Tensor], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        exact(sent, {"w": torch.zeros(2)}, "x")


@given(st.text(max_size=200))
def test_what_is_printed_is_one_harmless_line(text: str) -> None:
    assert plain(text, 40).isprintable()
    assert len(plain(text, 40)) <= 40


def test_a_message_is_listed_with_names_shapes_and_bytes() -> None:
    content = RecordDict({"w": pack({"a.weight": torch.zeros(2, 3)}), "answer": ConfigRecord({"samples": 4})})
    assert sorted(listing(content)) == ["answer samples=4", "w a.weight (2, 3) float32 24 B"]
