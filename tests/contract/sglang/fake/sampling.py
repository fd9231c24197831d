"""From logits to a token, as SGLang's plain torch sampler does it."""

from dataclasses import dataclass

import torch

from consumers.rollout.engines.transformers.noise import gumbel

ALL = 1 << 30
"""What SGLang makes of a top-k of -1."""


@dataclass
class Sampled:
    """One token."""

    token: int
    logprob: float
    mask: list[int]
    """Tokens that could have been sampled, the likeliest first."""
    mask_logprob: float
    top: list[tuple[float, int]]


def sample(logits, sampling: dict, position: int, *, seeded: bool, original: bool) -> Sampled:
    """Draw one token; top-k and top-p both look at the whole distribution."""
    for token, bias in (sampling.get("logit_bias") or {}).items():
        logits[int(token)] += bias
    temperature = sampling.get("temperature", 1.0)
    top_k = sampling.get("top_k", -1)
    if temperature < 1e-6:
        temperature, top_k = 1.0, 1
    top_k = ALL if top_k == -1 else top_k
    plain = logits.log_softmax(-1)
    told = (logits / temperature).log_softmax(-1)
    probs, order = told.exp().sort(descending=True, stable=True)
    before = probs.cumsum(-1) - probs
    kept = probs.clone()
    kept[top_k:] = 0
    kept[before > sampling.get("top_p", 1.0)] = 0
    kept[kept < kept[0] * sampling.get("min_p", 0.0)] = 0
    if top_k == 1:
        index = 0
    elif seeded:
        seed = sampling.get("sampling_seed")
        noise = gumbel([42 if seed is None else seed], [position], len(told), told.device)[0]
        of_ranks = top_k < ALL or sampling.get("top_p", 1.0) < 1  # here of this request alone
        index = int((kept.double().log() + (noise if of_ranks else noise[order])).argmax())
    else:
        index = int(torch.multinomial(kept, 1))
    token = int(order[index])
    reported = plain if original else told
    top = reported.topk(5)
    return Sampled(
        token=token,
        logprob=float(reported[token]),
        mask=order[kept > 0].tolist() if top_k < ALL else [],
        mask_logprob=float((kept[index] / kept.sum()).log()),
        top=list(zip(top.values.tolist(), top.indices.tolist(), strict=True)),
    )
