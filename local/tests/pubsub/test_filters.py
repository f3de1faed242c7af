"""Filters of subscriptions."""

from __future__ import annotations

import pytest

from local.pubsub.filters import FilterError, parse

PASSING = [
    ("", {}),
    ('attributes.cause = "Added"', {"cause": "Added"}),
    ('attributes.cause="Added"', {"cause": "Added"}),
    ('attributes.cause != "Added"', {"cause": "Sync"}),
    ("attributes:cause", {"cause": ""}),
    ("NOT attributes:cause", {"other": ""}),
    ("-attributes:cause", {}),
    ('attributes."iana.org/language" = "en"', {"iana.org/language": "en"}),
    ('attributes:"with space"', {"with space": "x"}),
    ('attributes.a-b = "c"', {"a-b": "c"}),
    ('hasPrefix(attributes.domain, "co")', {"domain": "com"}),
    ('hasPrefix(attributes.domain, "")', {"domain": ""}),
    ("attributes:a AND attributes:b", {"a": "", "b": ""}),
    ("attributes:a OR attributes:b", {"b": ""}),
    ("attributes:a AND (attributes:b OR attributes:c)", {"a": "", "c": ""}),
    ("NOT (attributes:a OR attributes:b)", {"c": ""}),
    (r'attributes.q = "say \"hi\""', {"q": 'say "hi"'}),
]
STOPPED = [
    ('attributes.cause = "Added"', {"cause": "added"}),
    ('attributes.cause = "Added"', {}),
    ('attributes.cause != "Added"', {"cause": "Added"}),
    ("attributes:cause", {"other": ""}),
    ('hasPrefix(attributes.domain, "")', {}),
    ('hasPrefix(attributes.domain, "co")', {"domain": "org"}),
    ("attributes:a AND attributes:b", {"a": ""}),
    ("attributes:a AND (attributes:b OR attributes:c)", {"b": "", "c": ""}),
]
WRONG = [
    ("bogus(", "expected attributes, hasPrefix, NOT or ( at 1, found 'bogus'"),
    ("attributes", "expected '.' or ':' at 11, found the end"),
    ("attributes.a", "expected '=' or '!=' at 13, found the end"),
    ("attributes.a = b", "expected a string in double quotes at 16, found 'b'"),
    ("attributes. = ", "expected the key of an attribute at 13, found '='"),
    ("attributes:a attributes:b", "expected the end of the filter at 14, found 'attributes'"),
    ("(attributes:a", "expected ')' at 14, found the end"),
    (
        "attributes:a AND attributes:b OR attributes:c",
        "expected only AND (AND and OR need parentheses between them) at 31, found 'OR'",
    ),
    ("attributes:a & attributes:b", "unexpected '&' at 14"),
    (r'attributes.a = "\q"', r'"\q" is no string: Invalid \escape: line 1 column 2 (char 1)'),
]


@pytest.mark.parametrize("text,attributes", PASSING)
def test_a_filter_matches(text: str, attributes: dict[str, str]) -> None:
    assert parse(text)(attributes)


@pytest.mark.parametrize("text,attributes", STOPPED)
def test_a_filter_does_not_match(text: str, attributes: dict[str, str]) -> None:
    assert not parse(text)(attributes)


@pytest.mark.parametrize("text,message", WRONG)
def test_the_error_about_an_invalid_filter_has_position_and_expectation(
    text: str, message: str
) -> None:
    with pytest.raises(FilterError) as error:
        parse(text)
    assert str(error.value) == message
