"""The contract, where slices could be taken wrongly."""

import os
import signal

import pytest

from tests.contract.core import *  # noqa: F403
from tests.contract.harness import greedy, prompt, request, run
from tests.contract.processes import descendants
from tests.contract.test_generation import (
    test_logprobs_are_the_models_own,
)
from tests.contract.test_vllm_files import (
    test_files_damaged_after_they_were_prepared_are_refused,
    test_only_what_changed_is_copied,
)
from tests.contract.test_weight_files import (
    test_a_delta_on_something_else_is_loaded_as_a_whole,
    test_a_delta_on_what_is_served,
    test_deltas_one_after_the_other_and_back,
)
from tests.contract.test_weight_swap import (
    test_what_is_served_is_measured,
)

__all__ = [
    "test_a_delta_on_something_else_is_loaded_as_a_whole",
    "test_a_delta_on_what_is_served",
    "test_deltas_one_after_the_other_and_back",
    "test_files_damaged_after_they_were_prepared_are_refused",
    "test_logprobs_are_the_models_own",
    "test_only_what_changed_is_copied",
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
