"""The Hermes parser against well-formed, malformed and hostile turns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.rollout.parsers.hermes import CLOSE, OPEN, HermesParser
from infra.roles.registry import resolve


def parse(text):
    return HermesParser().parse(text, [])


def written(name, arguments):
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CLOSE}"


def test_it_is_registered():
    assert resolve("parser", "hermes") is HermesParser


def test_calls_and_content():
    turn = parse("first " + written("f", {"a": 1}) + " then " + written("g", {}) + " end")
    assert turn.content == "first  then  end"
    assert [(call.name, json.loads(call.arguments)) for call in turn.calls] == [
        ("f", {"a": 1}),
        ("g", {}),
    ]
    assert turn.errors == ()


def test_no_call():
    turn = parse("just text </tool_call>")
    assert (turn.content, turn.calls, turn.errors) == ("just text </tool_call>", (), ())


def test_a_string_may_hold_the_closing_tag():
    (call,) = parse(written("f", {"text": f"a {CLOSE} b {OPEN}"})).calls
    assert json.loads(call.arguments) == {"text": f"a {CLOSE} b {OPEN}"}


def test_arguments_as_text_and_missing_arguments():
    (call,) = parse(f'{OPEN}{{"name": "f", "arguments": "{{\\"a\\": 2}}"}}{CLOSE}').calls
    assert json.loads(call.arguments) == {"a": 2}
    (call,) = parse(f'{OPEN}{{"name": "f"}}{CLOSE}').calls
    assert call.arguments == "{}"


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("", "malformed"),
        ("{nonsense", "malformed"),
        ("{'name': 'f'}", "malformed"),
        ("[1]", "not an object"),
        ('"f"', "not an object"),
        ("{}", 'no "name"'),
        ('{"name": 3}', 'no "name"'),
        ('{"name": ""}', 'no "name"'),
        ('{"name": "f", "arguments": [1]}', "not an object"),
        ('{"name": "f"} and more', "follows its JSON"),
        ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "too long"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_malformed_call_is_an_error_and_the_next_one_still_counts(inside, says):
    turn = parse(f"{OPEN}{inside}{CLOSE}" + written("g", {}))
    assert len(turn.errors) == 1
    assert says in turn.errors[0]
    assert [call.name for call in turn.calls] == ["g"]


def test_an_open_call_is_an_error():
    for text in (OPEN, f'{OPEN}{{"name": "f"}}', f'{OPEN}{{"name": "f'):
        turn = parse("so " + text)
        assert turn.calls == ()
        assert "is missing" in turn.errors[0]
        assert turn.content == "so"


def test_lone_surrogates_do_not_reach_a_message():
    (call,) = parse(f'{OPEN}{{"name": "f\\ud800", "arguments": {{"a": "\\udfff"}}}}{CLOSE}').calls
    assert (call.name, call.arguments) == ("f?", '{"a": "?"}')


@given(
    st.lists(
        st.one_of(
            st.sampled_from([OPEN, CLOSE, "{", "}", '"', '{"name": "f"}', "\n", "9" * 50, "[["]),
            st.text(max_size=5),
        ),
        max_size=30,
    )
)
def test_nothing_raises_and_every_opening_is_answered(pieces):
    text = "".join(pieces)
    turn = parse(text)
    if OPEN in text:
        assert turn.calls or turn.errors
    else:
        assert not turn.calls and not turn.errors


@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=9).filter(lambda name: name.isprintable()),
            st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=4),
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read(calls):
    turn = parse(" ".join(written(name, arguments) for name, arguments in calls))
    assert [(c.name, json.loads(c.arguments)) for c in turn.calls] == calls
    assert turn.errors == ()
