"""What every way to serve a model must show, also one that cannot show all of the contract."""

from tests.contract.test_generation import (
    test_a_first_prompt_of_two_tokens_is_survived,
    test_many_at_once_do_not_disturb_each_other,
)
from tests.contract.test_interruption import (
    test_many_cut_anywhere_go_on_as_if_uncut,
    test_the_queued_end_with_nothing,
    test_the_running_keep_every_token,
)
from tests.contract.test_weight_files import (
    test_what_is_damaged_is_refused_and_the_old_serves,
)
from tests.contract.test_weight_swap import (
    test_a_head_that_repeats_the_embedding_is_welcome,
    test_a_prefix_computed_with_old_weights_is_never_used,
    test_a_swap_changes_every_later_turn_and_swaps_back,
    test_requests_made_during_a_swap_are_served_after_it,
    test_the_running_go_on_under_the_new_weights_from_one_token_to_the_next,
    test_what_does_not_fit_is_refused_and_the_old_serves,
)

__all__ = [
    "test_a_first_prompt_of_two_tokens_is_survived",
    "test_a_head_that_repeats_the_embedding_is_welcome",
    "test_a_prefix_computed_with_old_weights_is_never_used",
    "test_a_swap_changes_every_later_turn_and_swaps_back",
    "test_many_at_once_do_not_disturb_each_other",
    "test_many_cut_anywhere_go_on_as_if_uncut",
    "test_requests_made_during_a_swap_are_served_after_it",
    "test_the_queued_end_with_nothing",
    "test_the_running_go_on_under_the_new_weights_from_one_token_to_the_next",
    "test_the_running_keep_every_token",
    "test_what_does_not_fit_is_refused_and_the_old_serves",
    "test_what_is_damaged_is_refused_and_the_old_serves",
]
