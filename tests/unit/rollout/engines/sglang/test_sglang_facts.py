"""The first token of a server, by which it shows that its log-probabilities are as needed."""

import json
import math

import pytest

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.sglang.client import Answer
from consumers.rollout.engines.sglang.facts import probe

UNIFORM = math.log(1 / 64)


class Server:
    """Answers every request with the same token."""

    def __init__(self, token: int, logprob: float, two: dict[int, float], sampled: float) -> None:
        self.asked: list[int] = []
        self.found = {
            "output_ids": [token],
            "meta_info": {
                "output_token_logprobs": [[logprob, token, None]],
                "output_top_logprobs": [[[value, one, None] for one, value in two.items()]],
                "output_token_sampling_logprobs": [sampled],
            },
        }

    async def generate(self, body, *, timeout_s):
        self.asked = body["input_ids"]
        return Answer(status=200, text=json.dumps(self.found))


async def test_a_token_as_likely_as_the_second_is_understood():
    server = Server(48, UNIFORM, {42: UNIFORM, 43: UNIFORM}, math.log(1 / 2))
    await probe(server)
    assert server.asked != [0]


@pytest.mark.parametrize(
    ("logprob", "sampled"), [(-3.0, -2.3), (-1.0, math.log(1 / 2)), (-1.0, -1.0)]
)
async def test_log_probabilities_of_something_else_are_refused(logprob, sampled):
    """The second of two is told too low, or too high after top-k."""
    with pytest.raises(EngineFailed, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
        await probe(Server(7, logprob, {5: -0.5, 6: -1.0}, sampled))
