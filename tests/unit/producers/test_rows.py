"""Every accepted shape of a row, and what is said of the others."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.rows import DatasetError, parse_row
from schemas.chat import Speaker


def parse(raw, columns=None):
    return parse_row(raw, columns or {}, where="d.jsonl:7")


def test_a_text_prompt_is_what_the_user_says():
    row = parse({"prompt": "2+2?", "answer": "4"})
    assert [(m.role, m.content) for m in row.messages] == [(Speaker.USER, "2+2?")]
    assert row.reward_data.ground_truth == "4"
    assert row.tools is None


@pytest.mark.parametrize("column", ["prompt", "messages"])
def test_messages_under_either_name(column):
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    row = parse({column: said})
    assert [m.role for m in row.messages] == [Speaker.SYSTEM, Speaker.USER]
    assert row.reward_data.ground_truth is None


@pytest.mark.parametrize("name", ["ground_truth", "answer", "solution"])
def test_names_of_the_ground_truth(name):
    assert parse({"prompt": "x", name: {"value": 3}}).reward_data.ground_truth == {"value": 3}


def test_the_row_that_verl_writes():
    row = parse(
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": "Natalia sold clips.", "name": None}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "72"},
            "extra_info": {"split": "train", "index": 0, "answer": "#### 72"},
        }
    )
    assert row.reward_data.data_source == "openai/gsm8k"
    assert row.reward_data.ground_truth == "72"
    assert row.reward_data.extra_info == {"split": "train", "index": 0, "answer": "#### 72"}


def test_columns_of_the_recipe_go_first_and_into_structs():
    row = parse(
        {"question": "Why?", "prompt": "not this", "meta": {"gold": "42"}, "answer": "not this"},
        {"prompt": "question", "ground_truth": "meta.gold"},
    )
    assert row.messages[0].content == "Why?"
    assert row.reward_data.ground_truth == "42"


def test_tool_calls_in_a_prompt_keep_their_arguments_as_text():
    call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    row = parse(
        {
            "messages": [
                {"role": "user", "content": "1+1"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "2", "tool_call_id": "c1"},
            ]
        }
    )
    assert row.messages[1].tool_calls[0].function.arguments == '{"a":1}'


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]
    assert (
        parse({"prompt": [{"role": "user", "content": parts}]}).messages[0].content == "Hello you"
    )


def test_tools_of_a_row():
    assert parse({"prompt": "x", "tools": ["calculator"]}).tools == ("calculator",)


def calling(call):
    return {"role": "user", "content": "x", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([1, 2], "the row is list, not an object"),
        (None, "the row is null"),
        ({"question": "x", "answer": "y"}, "no prompt: the row has the columns answer, question"),
        ({}, "no prompt: the row has no columns"),
        ({"prompt": None}, "no prompt"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": 3}, "the prompt is int"),
        ({"prompt": []}, "no messages"),
        ({"prompt": ["hi"]}, "message 0 is str"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "message 0: role"),
        ({"prompt": [{"role": "user", "content": 5}]}, "message 0: content"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "ends with the assistant"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text"),
        ({"prompt": "x", "extra_info": "y"}, "extra_info is str"),
        ({"prompt": "x", "extra_info": {"at": b"1"}}, "cannot be written as JSON"),
        ({"prompt": "x", "tools": [{"name": "t"}]}, "tools must be a list of names"),
        ({"prompt": [{"role": "user", "content": "x", "tool_calls": 5}]}, "no list of objects"),
        ({"prompt": [calling({"function": "add"})]}, "function is str, no object"),
        ({"prompt": [calling({})]}, "function is null, no object"),
    ],
)
def test_a_bad_row_is_named_with_the_reason(raw, said):
    with pytest.raises(DatasetError) as caught:
        parse(raw)
    assert str(caught.value).startswith("d.jsonl:7")
    assert said in str(caught.value)


def test_a_column_that_the_recipe_names_must_exist():
    with pytest.raises(DatasetError, match=r"'question'.*is missing or null"):
        parse({"prompt": "x"}, {"prompt": "question"})


def test_dates_of_parquet_are_written_as_text():
    row = parse({"prompt": "x", "extra_info": {"day": datetime.date(2024, 1, 2)}})
    assert row.reward_data.extra_info == {"day": "2024-01-02"}


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
names = st.sampled_from(
    ["role", "content", "tool_calls", "function", "name", "arguments", "id", "text", "type"]
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)
)


@given(
    st.dictionaries(st.sampled_from(["prompt", "messages", "tools", "extra_info"]), values)
    | st.fixed_dictionaries(
        {
            "prompt": st.lists(
                st.fixed_dictionaries({"role": st.just("user"), "tool_calls": values}), min_size=1
            )
        }
    )
)
def test_no_row_ends_a_producer(raw):
    """Whatever lies in a file is a prompt or a failure of this row."""
    try:
        row = parse(raw)
    except DatasetError as error:
        assert str(error).startswith("d.jsonl:7")
    else:
        assert row.messages
