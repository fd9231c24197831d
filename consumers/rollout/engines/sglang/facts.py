"""What a server is, and whether it is one that the engine can work with."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.sglang.client import Client, Unreachable
from consumers.rollout.engines.sglang.options import Options, check_version, seeds_and_min_p
from infra.roles.errors import ConfigError

_TIE_ROOM = 64
"""Tokens as likely as the last one that top-k keeps may join them."""
_INFO_S = 30.0
_PROBE_S = 120.0
_TOLERANCE = 1e-2
_PROMPT = [1, 2, 3]
"""Not 0 alone: where that is padding, its embedding is zero and every next token as likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of a running server."""

    version: str
    device: str
    tensor_parallel: int
    deterministic: bool
    """Noise is a function of seed and position; without it, seeds have no effect."""
    mask_limit: int
    """Tokens that may be left after top-k, top-p and min-p."""

    def top_k(self, wanted: int, vocab_size: int) -> int:
        """The top-k to send when a distribution is truncated: SGLang tells the log-probability of
        a truncated distribution only where top-k bounds it."""
        whole = vocab_size <= self.mask_limit
        return min(wanted or vocab_size, vocab_size if whole else self.mask_limit - _TIE_ROOM)


def read_facts(info: Mapping[str, Any], *, dtype: str, max_model_len: int) -> Facts:
    """Check `/server_info`.

    Args:
        info: The answer.
        dtype: That the model must have.
        max_model_len: Tokens that must fit, prompt and answer together.

    Raises:
        ConfigError: A version or a flag with which this engine would be wrong.
    """
    check_version(str(info.get("version")))
    needed = {
        "dtype": (dtype, "auto" if dtype == "auto" else dtype),
        "dp_size": (1,),
        "pp_size": (1,),
        "tokenizer_worker_num": (1,),
        "skip_tokenizer_init": (True,),
        "disaggregation_mode": ("null",),
        "speculative_algorithm": (None,),
        "quantization": (None,),
        "preferred_sampling_params": (None,),
        "enable_lora": (None, False),
    }
    wrong = [
        f"{name} = {info.get(name)!r} (this engine needs {allowed[0]!r})"
        for name, allowed in needed.items()
        if info.get(name) not in allowed
    ]
    if wrong:
        raise ConfigError(
            f"the SGLang server runs with {', '.join(wrong)}",
            hint=f"start it with other arguments, as in --skip-tokenizer-init --dtype {dtype}",
        )
    room = int(info.get("max_req_input_len") or 0) + 1
    if room < max_model_len:
        raise ConfigError(
            f"the SGLang server takes sequences of {room} tokens, the recipe needs {max_model_len}",
            hint=f"start it with --context-length {max_model_len + 8} and a cache "
            "(--max-total-tokens) that holds more than that",
        )
    return Facts(
        version=str(info["version"]),
        device=str(info.get("device")),
        tensor_parallel=int(info.get("tp_size") or 1),
        deterministic=bool(info.get("enable_deterministic_inference")),
        mask_limit=int(info.get("sampling_mask_max_tokens") or 0),
    )


async def server_info(client: Client) -> Mapping[str, Any]:
    """What the server says of itself.

    Raises:
        ConfigError: Something else answers.
        Unreachable: Nothing does.
    """
    answer = await client.get("/server_info", timeout_s=_INFO_S)
    info = answer.json()
    if not answer.ok or "version" not in info:
        raise ConfigError(
            f"{client.url} is no SGLang server: it answers {answer.status} to /server_info",
            hint="rollout.engine_options.url is where `python -m sglang.launch_server` listens",
        )
    return info


def check_given(options: Options, *, dtype: str, max_model_len: int, min_p: float) -> None:
    """See that a server that is given answers and will do; without one, nothing is looked at.

    Raises:
        ConfigError: See `read_facts`; or nothing answers, or something else.
        EngineFailed: It wants other keys.
    """

    async def look() -> Mapping[str, Any]:
        client = Client.of(options.url)
        try:
            return await server_info(client)
        finally:
            await client.close()

    if not options.url:
        return
    try:
        info = asyncio.run(look())
    except Unreachable as error:
        raise ConfigError(
            f"no SGLang server answers: {error}",
            hint="start it, or give its address as rollout.engine_options.url",
        ) from error
    if read_facts(info, dtype=dtype, max_model_len=max_model_len).deterministic and min_p:
        raise seeds_and_min_p()


async def probe(client: Client) -> None:
    """Generate one token, and see that its log-probabilities mean what they must.

    Half the temperature doubles differences of logits, unless the server is told to report those
    of the plain model (`SGLANG_RETURN_ORIGINAL_LOGPROB`). Of two tokens that top-k leaves, the
    reported log-probabilities and that of the sampled one must agree.

    Raises:
        EngineFailed: They do not, or the answer is not what SGLang sends.
    """
    body = {
        "input_ids": _PROMPT,
        "sampling_params": {
            "max_new_tokens": 1,
            "temperature": 0.5,
            "top_k": 2,
            "top_p": 1.0,
            "min_p": 0.0,
            "ignore_eos": True,
        },
        "return_logprob": True,
        "return_sampling_mask": True,
        "top_logprobs_num": 2,
    }
    answer = await client.generate(body, timeout_s=_PROBE_S)
    try:
        found = answer.json()
        meta = found["meta_info"]
        (token,) = found["output_ids"]
        two = {entry[1]: entry[0] for entry in meta["output_top_logprobs"][0]}
        (sampled,) = meta["output_token_sampling_logprobs"]
        ((logprob, told, _),) = meta["output_token_logprobs"]
        # One that is not among them may be as likely as the second.
        alone = two.get(token, min(two.values()))
        agreed = told == token and math.isclose(logprob, alone, abs_tol=_TOLERANCE)
        expected = alone - math.log(sum(map(math.exp, two.values())))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineFailed(
            f"SGLang's answer to a first token is not understood ({type(error).__name__}: {error}):"
            f" {answer.text[:500]}"
        ) from error
    if not agreed or not math.isclose(sampled, expected, abs_tol=_TOLERANCE):
        raise EngineFailed(
            f"SGLang tells log-probability {sampled:.4f} of a token of which {expected:.4f} was "
            f"expected",
            hint="start the server without SGLANG_RETURN_ORIGINAL_LOGPROB: log-probabilities must "
            "be of what was sampled",
        )
