"""The contract, where slices could be taken wrongly."""

import os
import signal

import pytest

from tests.contract.harness import greedy, prompt, request, run
from tests.contract.processes import descendants
from tests.contract.test_generation import (
    test_a_first_prompt_of_two_tokens_is_survived,
    test_logprobs_are_the_models_own,
    test_many_at_once_do_not_disturb_each_other,
)
from tests.contract.test_interruption import (
    test_many_cut_anywhere_go_on_as_if_uncut,
    test_the_queued_end_with_nothing,
    test_the_running_keep_every_token,
)
from tests.contract.test_vllm_files import (
    test_files_damaged_after_they_were_prepared_are_refused,
    test_only_what_changed_is_copied,
)
from tests.contract.test_weight_files import (
    test_a_delta_on_something_else_is_loaded_as_a_whole,
    test_a_delta_on_what_is_served,
    test_deltas_one_after_the_other_and_back,
    test_what_is_damaged_is_refused_and_the_old_serves,
)
from tests.contract.test_weight_swap import (
    test_a_head_that_repeats_the_embedding_is_welcome,
    test_a_prefix_computed_with_old_weights_is_never_used,
    test_a_swap_changes_every_later_turn_and_swaps_back,
    test_requests_made_during_a_swap_are_served_after_it,
    test_the_running_go_on_under_the_new_weights_from_one_token_to_the_next,
    test_what_does_not_fit_is_refused_and_the_old_serves,
    test_what_is_served_is_measured,
)

__all__ = [
    "test_a_delta_on_something_else_is_loaded_as_a_whole",
    "test_a_delta_on_what_is_served",
    "test_a_first_prompt_of_two_tokens_is_survived",
    "test_a_head_that_repeats_the_embedding_is_welcome",
    "test_a_prefix_computed_with_old_weights_is_never_used",
    "test_a_swap_changes_every_later_turn_and_swaps_back",
    "test_deltas_one_after_the_other_and_back",
    "test_files_damaged_after_they_were_prepared_are_refused",
    "test_logprobs_are_the_models_own",
    "test_many_at_once_do_not_disturb_each_other",
    "test_many_cut_anywhere_go_on_as_if_uncut",
    "test_only_what_changed_is_copied",
    "test_requests_made_during_a_swap_are_served_after_it",
    "test_the_queued_end_with_nothing",
    "test_the_running_go_on_under_the_new_weights_from_one_token_to_the_next",
    "test_the_running_keep_every_token",
    "test_what_does_not_fit_is_refused_and_the_old_serves",
    "test_what_is_damaged_is_refused_and_the_old_serves",
    "test_what_is_served_is_measured",
]

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.vllm,
    pytest.mark.timeout(300),  # three processes import vLLM before the first
]


async def test_an_interrupt_from_the_keyboard_reaches_none_of_them(served):
    for pid in descendants():
        os.kill(pid, signal.SIGINT)
    turn = await run(served.engine, request("k", prompt(9), max_tokens=20))
    assert turn.token_ids == greedy(served.references[0], prompt(9), 20)
