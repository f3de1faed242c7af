"""Fields of documents that may be absent or of another type."""

from __future__ import annotations

from typing import Any

import pytest

from shared.base.documents import MAX_DEPTH, parse_json, parse_yaml, read_number


def nested(depth: int, inside: str = '"]} \\" {["') -> bytes:
    return (f'{{"a":{inside},"deep":' + '[{"b":' * depth + "1" + "}]" * depth + ',"c":2}').encode()


def test_only_values_that_are_nested_too_deeply_are_dropped() -> None:
    found = parse_json(nested(5_000))
    assert (found["a"], found["c"]) == ('"]} " {['[1:], 2)
    depth = 1
    part = found["deep"]
    while isinstance(part, list | dict):
        depth, part = depth + 1, part[0] if isinstance(part, list) else part["b"]
    assert (depth, part) == (MAX_DEPTH, None)


def test_a_document_that_is_not_nested_too_deeply_is_complete() -> None:
    text = str(parse_json(nested(100)))
    assert text.count("'b'") == 100


def test_invalid_json_is_an_error_at_any_depth() -> None:
    levels = b'{"b":' * 5_000
    second_is_open = b'{"a":' + levels + b"1" + b"}" * 5_000 + b',"d":' + levels
    for text in (b"{", b"[" * 5_000, nested(5_000)[:-1], second_is_open):
        with pytest.raises(ValueError, match=r"Expecting|Unterminated|delimiter"):
            parse_json(text)


@pytest.mark.parametrize(
    "text, value",
    [
        (
            "{a: 2026-11-01, b: 2026-11-01T09:00:00Z}",
            {"a": "2026-11-01", "b": "2026-11-01T09:00:00Z"},
        ),
        ("2026-13-45: 1", {"2026-13-45": 1}),
        ("8: [1, 2.5, yes]", {"8": [1, 2.5, True]}),
        ("", None),
    ],
)
def test_yaml_is_parsed_as_kubectl_does(text: str, value: Any) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    "text, why",
    [
        ("a: [", "while parsing a flow node"),
        ("a: &a [*a]", "Circular reference"),
        ("a: !!set {b}", "type set is not JSON"),
        ("a: !!binary aGVsbG8=", "type bytes is not JSON"),
        ("a: !!bool x", "x"),
        ("a: 1\n---\na: 2", "expected one document, and found 2"),
    ],
)
def test_yaml_that_is_not_json_is_an_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_yaml(text)


@pytest.mark.parametrize("document, number", [({"n": 3}, 3), ({}, 0), ({"n": "3"}, 0)])
def test_a_number_that_is_absent_or_of_another_type_is_zero(
    document: dict[str, Any], number: int
) -> None:
    assert read_number(document, "n") == number
