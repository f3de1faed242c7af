"""The query language of Cloud Logging: matches, and errors about invalid queries."""

from __future__ import annotations

from typing import Any

import pytest

from local.cloud.logging_query import QueryError, parse

ENTRY: dict[str, Any] = {
    "logName": "projects/p/logs/cloudaudit.googleapis.com%2Factivity",
    "timestamp": "2026-01-01T10:00:00.5Z",
    "severity": "NOTICE",
    "resource": {"type": "gce_instance", "labels": {"zone": "us-central1-c"}},
    "labels": {"compute.googleapis.com/root": "abc"},
    "operation": {"id": "operation-1", "last": True},
    "protoPayload": {
        "methodName": "v1.compute.instances.insert",
        "status": {"code": 8, "message": 'said "no" \\ again'},
        "authorizationInfo": [{"permission": "a.get"}, {"permission": "a.list"}],
        "nothing": None,
    },
}

MATCHING = [
    'timestamp>="2026-01-01T10:00:00Z"',
    'timestamp<"2026-01-01T12:00:00.5+01:00"',
    'severity="NOTICE"',
    "severity=notice",
    "severity>=INFO",
    "severity<ERROR",
    "severity!=ERROR",
    "severity=(ERROR OR NOTICE)",
    'resource.type="GCE_INSTANCE"',
    "resource.type:instance",
    "resource.labels:zone",
    'resource.labels.zone="us-central1-c"',
    "resource.labels.zone=us-central1-c",
    'labels."compute.googleapis.com/root"=abc',
    "operation.last=true",
    "operation.first=false",
    'operation.producer=""',
    "protoPayload.status.code=8",
    "protoPayload.status.code>7",
    "protoPayload.status.code<=8",
    "protoPayload.status.code:8",
    "protoPayload.status.code!=9",
    "protoPayload.status:*",
    r'protoPayload.status.message:"said \"no\" \\ AGAIN"',
    'protoPayload.methodName=~"compute[.]instances[.](insert|start)$"',
    'protoPayload.methodName!~"delete"',
    'protoPayload.methodName:("insert" AND "compute")',
    'protoPayload.authorizationInfo.permission="a.list"',
    'log_id("cloudaudit.googleapis.com/activity")',
    "NOT severity=ERROR",
    "-severity=ERROR",
    "NOT NOT severity=NOTICE",
    "NOT (severity=ERROR OR severity=INFO)",
    "severity=NOTICE AND operation.last=true",
    "severity=NOTICE operation.last=true",
    "severity=NOTICE\noperation.last=true\n",
    "severity=ERROR OR operation.last=true",
    "(severity=ERROR OR severity=NOTICE)\noperation.last=true",
    "(\n  severity=NOTICE\n)\n",
    "NOT protoPayload.missing=x",
    "NOT protoPayload.nothing:*",
]
OTHERS = [
    "severity=ERROR",
    "severity>NOTICE",
    "resource.type=gce",
    "resource.labels:region",
    "operation.last=false",
    "operation.first=true",
    "protoPayload.status.code=9",
    "protoPayload.status.code>8",
    "protoPayload.methodName>8",
    "protoPayload.missing=x",
    "protoPayload.missing!=x",
    "protoPayload.missing:*",
    'protoPayload.missing=~"."',
    'protoPayload.missing!~"x"',
    "protoPayload.methodName.deeper=x",
    "protoPayload.nothing=null",
    'protoPayload.methodName=~"COMPUTE"',
    'protoPayload.status.code=~"8"',
    'protoPayload.methodName:("insert" AND "delete")',
    'log_id("cloudaudit.googleapis.com/system_event")',
    'log_id("activity")',
    "NOT severity=NOTICE",
    "severity=NOTICE AND operation.last=false",
    "severity=NOTICE\noperation.last=false",
]


@pytest.mark.parametrize("text", MATCHING)
def test_the_entry_matches(text: str) -> None:
    assert parse(text)(ENTRY)


@pytest.mark.parametrize("text", OTHERS)
def test_the_entry_does_not_match(text: str) -> None:
    assert not parse(text)(ENTRY)


WRONG = [
    ("", "line 1, column 1: expected a field, found the end"),
    ("severity", "line 1, column 9: expected one of = != : =~ !~ > >= < <=, found the end"),
    ('"error"', "line 1, column 8: expected one of = != : =~ !~ > >= < <=, found the end"),
    ("severity=", "line 1, column 10: expected a word, or a text in double quotes, found the end"),
    ("a=1\n AND", "line 2, column 5: expected a field, found the end"),
    ("a=1\nb=1 OR c=1", "line 2, column 5: expected parentheses where AND and OR meet, found 'OR'"),
    ("a=1 OR b=1\nc=1", "line 2, column 1: expected parentheses where AND and OR meet, found 'c'"),
    ("a=(b OR c d)", "line 1, column 11: expected parentheses where AND and OR meet, found 'd'"),
    ("(a=1", "line 1, column 5: expected ')', found the end"),
    ("a=1)", "line 1, column 4: expected AND, OR or the end, found ')'"),
    ("log_id(a)", "line 1, column 8: expected a log's id in double quotes, found 'a'"),
    ('log_id("a"', "line 1, column 11: expected ')', found the end"),
    ("a..b=1", "line 1, column 3: expected a field, found '.'"),
    ("a=1 & b=1", "line 1, column 5: unexpected '&'"),
    ("a='b'", 'line 1, column 3: unexpected "\'"'),
    ('a="b', "line 1, column 3: unexpected '\"'"),
    ("-- a comment", "line 1, column 1: expected a field, found '--'"),
    (
        r'a=~"x\.y"',
        r"""line 1, column 6: expected \" or \\, found '\\.' """
        "(a dot in an expression can be written [.])",
    ),
    ('a=~"("', "line 1, column 4: no regular expression: missing ), unterminated subpattern "),
    ('a=~"(?=x)"', "line 1, column 4: RE2 does not know '(?'"),
    (r'a=~"(x)\\1"', r"line 1, column 4: RE2 does not know '\\1'"),
    ('a=~"x++"', "line 1, column 4: RE2 does not know '++'"),
    ("severity=LOUD", "line 1, column 10: 'LOUD' is none of the severities DEFAULT, DEBUG, INFO, "),
    ("a>b", "line 1, column 3: only numbers, severities and times have an order, not 'b'"),
]


@pytest.mark.parametrize("text,message", WRONG)
def test_the_error_about_an_invalid_query_has_position_and_expectation(
    text: str, message: str
) -> None:
    with pytest.raises(QueryError) as error:
        parse(text)
    assert str(error.value).startswith(message)


def test_a_query_above_the_maximum_length_is_an_error() -> None:
    with pytest.raises(QueryError) as error:
        parse("a=1\n" * 5_001)
    assert str(error.value) == "the query has 20004 characters of 20000 allowed"


def test_an_unknown_severity_matches_no_comparison() -> None:
    assert not parse("severity>=DEFAULT")({"severity": "LOUD"})


def test_an_entry_without_a_severity_has_severity_default() -> None:
    assert parse("severity=DEFAULT")({})
