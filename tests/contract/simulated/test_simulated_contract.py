"""The contract of every engine, where it does not speak of the distribution that a model has."""

import pytest

from tests.contract.core import *  # noqa: F403
from tests.contract.test_generation import (
    test_an_id_runs_once_at_a_time,
    test_greedy_is_the_arg_max,
    test_the_context_ends_the_turn,
    test_the_end_token_stops_only_when_asked_for,
    test_the_same_seed_gives_the_same_tokens_and_another_others,
    test_what_cannot_be_generated_is_refused,
)
from tests.contract.test_interruption import (
    test_a_sampled_turn_goes_on_as_if_uncut,
    test_an_interrupt_that_races_the_end_loses_nothing,
    test_an_unread_stream_loses_nothing,
    test_consumers_that_go_away_free_their_slots,
    test_going_on_equals_never_having_stopped_at_every_position,
    test_only_the_named_are_interrupted,
    test_the_context_is_a_limit_for_the_resumed_too,
    test_the_finished_and_unknown_are_left_alone,
)
from tests.contract.test_prefix_cache import (
    test_a_prompt_that_comes_again_is_cached_until_the_weights_change,
    test_a_resumed_request_finds_what_it_left,
    test_consumers_that_go_away_leave_neither_requests_nor_harm,
)
from tests.contract.test_weight_files import (
    test_another_checksum_is_refused_and_the_old_serves,
)
from tests.contract.test_weight_swap import (
    test_what_is_served_is_measured,
)

__all__ = [
    "test_a_prompt_that_comes_again_is_cached_until_the_weights_change",
    "test_a_resumed_request_finds_what_it_left",
    "test_a_sampled_turn_goes_on_as_if_uncut",
    "test_an_id_runs_once_at_a_time",
    "test_an_interrupt_that_races_the_end_loses_nothing",
    "test_an_unread_stream_loses_nothing",
    "test_another_checksum_is_refused_and_the_old_serves",
    "test_consumers_that_go_away_free_their_slots",
    "test_consumers_that_go_away_leave_neither_requests_nor_harm",
    "test_going_on_equals_never_having_stopped_at_every_position",
    "test_greedy_is_the_arg_max",
    "test_only_the_named_are_interrupted",
    "test_the_context_ends_the_turn",
    "test_the_context_is_a_limit_for_the_resumed_too",
    "test_the_end_token_stops_only_when_asked_for",
    "test_the_finished_and_unknown_are_left_alone",
    "test_the_same_seed_gives_the_same_tokens_and_another_others",
    "test_what_cannot_be_generated_is_refused",
    "test_what_is_served_is_measured",
]

pytestmark = pytest.mark.asyncio(loop_scope="session")
