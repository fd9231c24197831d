"""Which sampling options a recipe may have, and what they do to its rollouts."""

import pytest
from pydantic import ValidationError

from consumers.rollout.engines.options import check_sampling
from infra.roles.errors import ConfigError
from tests.unit.rollout.worker_fakes import config

PENALTY = {"repetition_penalty": 1.1}


@pytest.mark.parametrize("on_sync", ["republish", "drain"])
def test_options_that_forget_at_a_cut_are_refused_where_rollouts_are_cut(tmp_path, on_sync):
    with pytest.raises(
        ValidationError, match=f'repetition_penalty.*on_sync="{on_sync}".*in_flight'
    ):
        config(tmp_path, engine="vllm", on_sync=on_sync, sampling_options=PENALTY)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_in_flight_takes_them(tmp_path, engine):
    check_sampling(config(tmp_path, engine=engine, on_sync="in_flight", sampling_options=PENALTY))


@pytest.mark.parametrize(
    ("engine", "options", "named"),
    [
        ("vllm", {"logits_processors": "os:system"}, "has logits_processors"),
        ("vllm", {"extra_args": {}}, "has extra_args"),
        ("vllm", {"presence_penalty": 3}, "presence_penalty is 3"),
        ("vllm", {"presence_penalty": True}, "presence_penalty is True"),
        ("vllm", {"frequency_penalty": "1"}, "frequency_penalty is '1'"),
        ("vllm", {"structured_outputs": "x"}, "structured_outputs is 'x'"),
        ("vllm", {"structured_outputs": {"x": 1}}, "structured_outputs is"),
        ("vllm", {"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs is"),
        ("sglang", {"custom_logit_processor": "x"}, "has custom_logit_processor"),
        ("transformers", PENALTY, "has repetition_penalty"),
        ("simulated", PENALTY, "has repetition_penalty"),
    ],
)
def test_only_listed_names_and_plain_values_are_taken(tmp_path, engine, options, named):
    recipe = config(tmp_path, engine=engine, on_sync="in_flight", sampling_options=options)
    with pytest.raises(ConfigError, match=named):
        check_sampling(recipe)


def test_sglang_takes_one_truncation_at_a_time(tmp_path):
    check_sampling(config(tmp_path, engine="sglang", top_p=0.9))
    check_sampling(config(tmp_path, engine="vllm", top_p=0.9, min_p=0.1))
    with pytest.raises(ConfigError, match="top_p, min_p"):
        check_sampling(config(tmp_path, engine="sglang", top_p=0.9, min_p=0.1))


def test_sglang_takes_no_options_beside_min_tokens(tmp_path):
    keys = {"engine": "sglang", "on_sync": "in_flight", "sampling_options": PENALTY}
    with pytest.raises(ConfigError, match="min_tokens and sampling_options"):
        check_sampling(config(tmp_path, **keys, min_tokens=1))


def test_min_tokens_must_fit_a_turn(tmp_path):
    config(tmp_path, max_turn_tokens=9, min_tokens=9)
    with pytest.raises(ValidationError, match=r"min_tokens=10 exceeds rollout\.max_turn_tokens=9"):
        config(tmp_path, max_turn_tokens=9, min_tokens=10)


@pytest.mark.parametrize("keys", [{"min_p": 1.5}, {"min_tokens": -1}, {"stop": ["a", ""]}])
def test_values_out_of_range_are_refused(tmp_path, keys):
    with pytest.raises(ValidationError, match=next(iter(keys))):
        config(tmp_path, **keys)
