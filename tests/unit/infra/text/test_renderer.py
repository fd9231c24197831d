"""Deltas against whole renderings, for a ChatML tokenizer and a one-character one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.roles.errors import ConfigError
from infra.text.errors import TemplateRefused
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, FunctionCall, FunctionSpec, Speaker, ToolCall, ToolSpec
from tests.factories.rollouts import CHATML, chatml_folder, compact_folder


def says(role, text, **more):
    return ChatMessage(role=Speaker(role), content=text, **more)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory) -> Renderer:
    return Renderer.load(chatml_folder(tmp_path_factory.mktemp("chatml")))


@pytest.fixture(scope="module")
def compact(tmp_path_factory) -> Renderer:
    return Renderer.load(compact_folder(tmp_path_factory.mktemp("compact")))


def with_template(tmp_path, template) -> Renderer:
    return Renderer.load(chatml_folder(tmp_path / "model", template=template))


def text_of(renderer, token_ids):
    return renderer.decode(token_ids, skip_special=False)


TOOL = ToolSpec(function=FunctionSpec(name="f", description="does", parameters={"a": 1}))


def test_prompt(chatml):
    text = text_of(chatml, chatml.prompt([says("system", "be"), says("user", "héllo")], [TOOL]))
    assert text == (
        "<|im_start|>system\n# Tools\n"
        + json.dumps(TOOL.model_dump())
        + "\n<|im_end|>\n<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhéllo<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_delta_keeps_what_follows_the_stop_token(chatml):
    (stop,) = chatml.eos_token_ids
    delta = chatml.delta([says("tool", "7")], ended_by=stop)
    assert text_of(chatml, delta) == (
        "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert chatml.delta([says("tool", "7")], ended_by=None) == [stop, *delta]
    assert chatml.delta([says("tool", "7")], ended_by=99) == [stop, *delta]


def test_deltas_add_up_to_the_whole_conversation(chatml):
    (stop,) = chatml.eos_token_ids
    history = [says("system", "s"), says("user", "u")]
    token_ids = chatml.prompt(history, [TOOL])
    exchanges = [
        ("a0", [says("tool", "t0"), says("tool", "t1")]),
        ("a1 é", [says("user", "u1")]),
        ("a2", [says("tool", "t2")]),
    ]
    for answer, new in exchanges:
        token_ids += [*chatml._encode(answer), stop, *chatml.delta(new, ended_by=stop)]
        history += [says("assistant", answer), *new]
    assert token_ids == chatml.prompt(history, [TOOL])


def test_compact_template_has_no_turn_ends(compact):
    prompt = compact.prompt([says("user", "A:37+58=?")], [])
    assert text_of(compact, prompt) == "A:37+58=?"
    assert len(prompt) == 9
    call = compact._encode("<call>37+58</call>")
    assert len(call) == 7
    delta = compact.delta([says("tool", "095")], ended_by=call[-1])
    assert text_of(compact, delta) == "<res>095</res>"
    assert len(delta) == 5
    whole = compact._encode("A:37+58=?<call>37+58</call><res>095</res>")
    assert prompt + call + delta == whole


def test_both_templates_are_append_only(chatml, compact):
    chatml.check()
    compact.check()


def test_tool_calls_reach_the_template_as_objects(chatml):
    call = ToolCall(id="1", function=FunctionCall(name="f", arguments='{"a": 1}'))
    token_ids = chatml.prompt([says("user", "u"), says("assistant", "", tool_calls=(call,))], [])
    assert '{"name": "f", "arguments": {"a": 1}}' in text_of(chatml, token_ids)
    call = ToolCall(id="1", function=FunctionCall(name="f", arguments="not json"))
    token_ids = chatml.prompt([says("user", "u"), says("assistant", "", tool_calls=(call,))], [])
    assert '"arguments": "not json"' in text_of(chatml, token_ids)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            # forgets all but the last tool result
            "{% for m in messages %}{% if m.role != 'tool' or loop.last %}"
            "<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
            "not append-only for tool",
        ),
        (
            # numbers the messages from the end
            "{% for m in messages %}{{ loop.revindex }}{{ m.content }}<|im_end|>{% endfor %}",
            "not append-only for tool",
        ),
        (
            # opens the turn with something that is not there afterwards
            CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"),
            "not append-only for tool",
        ),
        (
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
            "{% endif %}{{ m.content }}<|im_end|>{% endfor %}",
            "cannot continue a conversation with tool messages.*no tools",
        ),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not show"),
    ],
    ids=["forgets", "renumbers", "opening vanishes", "refuses tools", "hides"],
)
def test_templates_that_are_not_append_only_are_refused(tmp_path, template, reason):
    with pytest.raises(ConfigError, match=f"(?s){reason}"):
        with_template(tmp_path, template).check()


def test_a_template_without_tools_can_still_continue_with_users(tmp_path):
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    with_template(tmp_path, template).check([Speaker.USER])


STRICT = (
    "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls "
    "and messages[loop.index0 - 1].role != 'tool' %}{{ raise_exception('no call before') }}"
    "{% endif %}<|im_start|>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.id }}]{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)


def test_a_template_that_wants_to_see_the_calls(tmp_path):
    renderer = with_template(tmp_path, STRICT)
    renderer.check()
    (stop,) = renderer.eos_token_ids
    delta = renderer.delta([says("tool", "7", tool_call_id="abc", name="f")], ended_by=stop)
    assert text_of(renderer, delta) == ("\n<|im_start|>tool: 7<|im_end|>\n<|im_start|>assistant: ")


def test_a_template_that_refuses_the_prompt(tmp_path):
    renderer = with_template(tmp_path, "{{ raise_exception('never') }}")
    with pytest.raises(TemplateRefused, match="never"):
        renderer.prompt([says("user", "u")], [])


def test_decode_keeps_text_as_it_is(chatml):
    text = " a , b . é \n<|im_end|>"
    token_ids = chatml._encode(text)
    assert chatml.decode(token_ids, skip_special=False) == text
    assert chatml.decode(token_ids, skip_special=True) == text.removesuffix("<|im_end|>")
    assert chatml.decode([], skip_special=False) == ""


def test_plain_breaks_control_tokens_only(chatml):
    text = "a <|im_end|> b <tool_call> <|x|> <|endoftext|><|im_start|>"
    plain = chatml.plain(text)
    assert plain == "a < |im_end|> b <tool_call> <|x|> < |endoftext|>< |im_start|>"
    assert not set(chatml._encode(plain)) & {0, 1, 2}


def test_end_of_sequence_tokens_come_from_every_file(tmp_path):
    folder = chatml_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    (folder / "config.json").write_text('{"eos_token_id": 5}')
    assert Renderer.load(folder).eos_token_ids == {0, 2, 5}


@pytest.mark.parametrize(
    ("missing", "says_what"),
    [("tokenizer.json", "no tokenizer.json"), ("chat_template.jinja", "no chat template")],
)
def test_incomplete_folders_are_refused(tmp_path, missing, says_what):
    folder = chatml_folder(tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=says_what):
        Renderer.load(folder)


def test_a_missing_folder_is_named_with_where_it_was_sought(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Renderer.load(Path("models/none"))
    assert f"no model folder models/none (from {tmp_path})" in str(caught.value)


def test_a_tokenizer_that_truncates_is_not_obeyed(tmp_path):
    folder = chatml_folder(tmp_path / "model")
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    stored["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(stored))
    assert len(Renderer.load(folder).prompt([says("user", "a long prompt " * 5)], [])) > 20


def test_rendering_needs_no_torch(tmp_path):
    folder = chatml_folder(tmp_path / "model")
    program = (
        "import sys; from pathlib import Path\n"
        "from infra.text.renderer import Renderer\n"
        "assert 'transformers' not in sys.modules\n"
        f"renderer = Renderer.load(Path({str(folder)!r})); renderer.check()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_answer_ends_as_the_template_ends_a_turn(chatml, compact):
    assert text_of(chatml, chatml.answer("4 é")) == "4 é<|im_end|>"
    answer = compact.answer("12")
    assert text_of(compact, answer[:-1]) == "12"
    assert answer[-1] in compact.eos_token_ids


def test_a_remembered_prompt_cannot_be_changed_by_who_got_it(chatml):
    asked = [says("user", "again")]
    first = chatml.prompt(asked, [TOOL])
    expected = list(first)
    first.append(99)
    assert chatml.prompt(asked, [TOOL]) == expected
    assert chatml.prompt(asked, []) != expected
