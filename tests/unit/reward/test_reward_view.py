"""What a reward function sees equals what the schema holds."""

import orjson

from consumers.reward.view import RolloutView
from tests.unit.reward.reward_rollouts import rollout


def test_view_equals_the_model():
    model = rollout("42")
    view = RolloutView(orjson.loads(model.model_dump_json()))
    tokens = model.progress.tokens
    assert view.token_ids == tokens.token_ids.tolist()
    assert view.logprobs == tokens.logprobs.tolist()
    assert view.mask == tokens.mask_array.tolist()
    assert view.versions == tokens.version_array.tolist()
    assert view.prompt_ids == [10, 11]
    assert view.response_ids == [12, 13, 14, 15, 16]
    assert (view.rollout_id, view.purpose, view.status) == ("3.1", "train", "completed")
    assert (view.data_source, view.ground_truth, view.extra_info) == ("test", "42", {"level": 2})
    assert view.finish_reason == "stop"
    assert view.num_interruptions == 0
    assert [turn["kind"] for turn in view.turns] == ["prompt", "assistant", "tool", "assistant"]
    assert view.tool_results == []


def test_response_begins_with_the_first_sampled_turn():
    view = RolloutView(orjson.loads(rollout().model_dump_json()))
    assert [m["role"] for m in view.response_messages] == ["assistant", "tool", "assistant"]
    assert view.response == "I ask.\n42\nso 42"
    assert view.assistant_texts == ["I ask.", "so 42"]
    assert view.final_text == "so 42"


def test_an_assistant_turn_of_the_prompt_is_not_the_response():
    raw = orjson.loads(rollout().model_dump_json())
    raw["progress"]["turns"] = [{"kind": "prompt"}, {"kind": "assistant"}]
    view = RolloutView(raw)
    assert view.response == "so 42"
