"""Graphs of GE and TensorFlow, and the flags of Ascend, are read up to where a file is broken."""

import json
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from precision_data import NpuOperator, escaped, json_graph, meta_graph, text_graph, varint

from ray_precheck.formats.ascend_flags import read_fusions, read_overflow
from ray_precheck.formats.ge_graph import read_ge_graph
from ray_precheck.formats.tensorflow_graph import read_tensorflow_graph

pytestmark = pytest.mark.unit
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
plain = st.text("abc/_.0", min_size=1, max_size=6)
operators = st.builds(
    NpuOperator,
    type=texts,
    name=texts,
    sources=st.lists(plain.map(lambda each: f"{each}:0"), max_size=3),
    originals=st.lists(texts, max_size=3),
)


@given(name=plain, made=st.lists(operators, min_size=1, max_size=4))
def test_both_forms_of_a_graph_say_the_same(name: str, made: Sequence[NpuOperator]) -> None:
    text = read_ge_graph(text_graph(name, made).encode(), is_json=False)
    found = read_ge_graph(json_graph(name, made).encode(), is_json=True)
    assert (text.note, found.note) == ("", "")
    for one, wanted in zip(text.nodes, made, strict=True):
        assert (one.name, one.type, one.graph) == (wanted.name, wanted.type, name)
        assert (one.inputs, one.originals) == (tuple(wanted.sources), tuple(wanted.originals))
    # JSON escapes with \u what is no ASCII; the names in it are of graphs, which are ASCII.
    assert found.nodes == text.nodes


@given(made=st.lists(st.tuples(texts, texts, st.lists(plain, max_size=3)), min_size=1, max_size=5))
def test_the_wire_form_of_tensorflow_is_read(made: list[tuple[str, str, list[str]]]) -> None:
    found = read_tensorflow_graph(meta_graph(made), is_meta=True)
    assert found.note == ""
    assert [(each.name, each.type) for each in found.nodes] == [each[:2] for each in made]
    wanted = [tuple(f"{each}:0" for each in inputs) for *_, inputs in made]
    assert [each.inputs for each in found.nodes] == wanted
    assert all(each.attributes == {"dim": -1, "scale": 0.5} for each in found.nodes)


@given(number=st.integers(0, 2**64 - 1))
def test_whole_numbers_of_the_wire_form(number: int) -> None:
    node = (
        b"\x0a\x01n"
        + b"\x2a"
        + varint(
            len(value := b"\x0a\x01k\x12" + varint(len(inner := b"\x18" + varint(number))) + inner)
        )
        + value
    )
    graph = b"\x0a" + varint(len(node)) + node
    (found,) = read_tensorflow_graph(graph, is_meta=False).nodes
    assert found.attributes == {"k": number - 2**64 if number >= 2**63 else number}


MODEL = [NpuOperator("A", "one", sources=["x:0"]), NpuOperator("B", "two", sources=["one:0"])]
WHOLE = [
    (text_graph("g", MODEL).encode(), "text"),
    (json_graph("g", MODEL).encode(), "json"),
    (meta_graph([("one", "A", []), ("two", "B", ["one"])]), "meta"),
]


def names_in(data: bytes, form: str) -> tuple[list[str], str]:
    if form == "meta":
        graph = read_tensorflow_graph(data, is_meta=True)
    else:
        graph = read_ge_graph(data, is_json=form == "json")
    return [each.name for each in graph.nodes], graph.note


@pytest.mark.parametrize(("whole", "form"), WHOLE, ids=[form for _, form in WHOLE])
def test_a_graph_that_is_cut_anywhere_gives_what_stands_before(whole: bytes, form: str) -> None:
    assert names_in(whole, form) == (["one", "two"], "")
    for end in range(len(whole)):
        names, note = names_in(whole[:end], form)
        assert names == ["one", "two"][: len(names)]
        assert note or (names and not whole[end:].strip(b"}\n ]")), end


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_graph_with_other_bytes_is_read_or_has_a_note(data: st.DataObject) -> None:
    whole, form = data.draw(st.sampled_from(WHOLE))
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    names, note = names_in(bytes(content), form)
    assert names or note


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b'op { name: "' + b"\\" * 400_001, "text"),
        (b"graph { op { " + b" " * 400_000, "text"),
        (b"op { " + b"a { " * 200_000, "text"),
        (b'op { name: "' + b'\\"' * 200_000, "text"),
        (b"op { i: " + b"9" * 400_000 + b" }", "text"),
        (b"op { input_desc { shape { dim: " + b"9" * 400_000 + b" } } }", "text"),
        (b"[" * 400_000, "json"),
        (b'{"op": [{' + b'"a": {' * 200_000, "json"),
        (b'{"op": [{"input_desc": [{"shape": {"dim": [1e999]}}]}]}', "json"),
        (b"\x0a" * 400_000, "meta"),
        (b"\x12\xff\xff\xff\xff\x7f", "meta"),
        (b"\x80" * 400_000, "meta"),
    ],
)
def test_made_up_files_take_neither_time_nor_memory(content: bytes, form: str) -> None:
    tracemalloc.start()
    try:
        names_in(content, form)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_texts_of_protobuf() -> None:
    text = 'op { name: "a\\303\\244\\n\\x41" type: \'b"\' input: "x:0" } op <name: "c">'
    assert names_in(text.encode(), "text") == (["aä\nA", "c"], "")
    assert escaped("ä\\") == "\\303\\244\\134"


def test_a_second_graph_of_the_json_is_read_with_its_own_name() -> None:
    graphs = [json.loads(json_graph(name, MODEL[:1]))["graph"][0] for name in ("g", "h")]
    found = read_ge_graph(json.dumps({"graph": graphs}).encode(), is_json=True)
    assert [each.graph for each in found.nodes] == ["g", "h"]


def unit(status: object, **others: object) -> dict[str, object]:
    return {"task_id": 3, "stream_id": 7, "status": status} | others


def bits(flag: object) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.unit, each.bits) for each in read_overflow(json.dumps(flag).encode())]


def test_bits_of_the_first_version_have_names() -> None:
    flag = {"DHA Atomic Add": unit(0), "L2 Atomic Add": unit(0), "AI Core": unit(272)}
    assert bits(flag) == [
        (
            "AI Core",
            (
                "0x10 integer add, subtract or multiply overflows",
                "0x100 float32 or int32 to float16 overflows",
            ),
        )
    ]
    (found,) = read_overflow(json.dumps(flag).encode())
    assert (found.task, found.stream, found.status) == (3, 7, "0x110")
    every = 0x8 | 0x10 | 0x20 | 0x80 | 0x100 | 0x400 | 0x1000
    assert len(bits({"AI Core": unit(every)})[0][1]) == 7
    assert bits({"AI Core": unit(0x1000)}) == [("AI Core", ("0x1000 of unknown meaning",))]
    assert bits({"DHA Atomic Add": unit(0x900)}) == [
        ("DHA Atomic Add", ("0x9 atomic add overflows",))
    ]
    assert bits({"L2 Atomic Add": unit(0b011 << 16)}) == [
        ("L2 Atomic Add", ("0x3 atomic add of an invalid source",))
    ]


def test_the_second_version_is_read() -> None:
    def of(kind: object, status: object) -> object:
        data = unit(status, model_id=1, context_id=2, pc_start="0x12")
        return {"magic": "0x5a5a5a5a", "version": 0, "acc_list": {"acc_type": kind, "data": data}}

    assert bits(of("AIC", 32)) == [("AIC", ("0x20 float computation overflows",))]
    assert bits(of("AIV", "0x400")) == [("AIV", ("0x400 CUBE accumulation overflows",))]
    assert bits(of("SDMA", 5)) == [("SDMA", ("0x5 of unknown meaning",))]
    assert bits(of(None, 0)) == []
    assert bits(of("AIC", [0, 4, 0])) == [("AIC", ("word 1 is 0x4",))]


@pytest.mark.parametrize("text", ["", "[]", "{}", "nan", '{"AI Core": 3}', "[" * 100_000])
def test_another_json_is_no_flag(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_overflow(text.encode())


def test_fusions_that_were_glued_together_are_read_one_by_one() -> None:
    times = {"effect_times": "1", "match_times": "2"}
    old = {
        "graphId": "0_1",
        "graph_fusion": {"A": times},
        "ub_fusion": {"B": times | {"effect_times": 0}},
    }
    named = {"session_and_graph_id": "0_2", "graph_fusion": {"C": times}}
    new = {"session_and_graph_id_0_3": {"graph_fusion": {"D": times}, "ub_fusion": 7}}
    text = json.dumps(old) + json.dumps(named) + "\n" + json.dumps([new])
    found = [
        (each.name, each.kind, each.graph, each.effect_times, each.match_times)
        for each in read_fusions(text)
    ]
    assert found == [
        ("A", "graph_fusion", "0_1", 1, 2),
        ("B", "ub_fusion", "0_1", 0, 2),
        ("C", "graph_fusion", "0_2", 1, 2),
        ("D", "graph_fusion", "0_3", 1, 2),
    ]
    several = read_fusions(json.dumps(old) + "{torn")
    assert [next(several).name, next(several).name] == ["A", "B"]
    with pytest.raises(ValueError, match=r"."):
        next(several)
