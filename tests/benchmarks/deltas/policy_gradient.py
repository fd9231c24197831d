"""Gradients of a group-relative policy gradient, on samples of the model's own."""

from dataclasses import dataclass

import torch

_TOPICS = (
    "the sea",
    "an old bridge",
    "bread",
    "winter",
    "a lost key",
    "trains",
    "the moon",
    "a garden",
    "music",
    "maps",
    "a lighthouse",
    "rain",
)
GROUPS = 2
GROUP_SIZE = 8
NUM_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Told:
    """Of one step's samples."""

    reward: float
    grad_norm: float


class Learner:
    """Asks for sentences and rewards the share of the letter e among their letters.

    Args:
        model: In float32; its gradients are what `step` leaves.
        tokenizer: Its own.
    """

    def __init__(self, model: torch.nn.Module, tokenizer: object) -> None:
        self._model = model
        self._tokenizer = tokenizer
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token

    def backward(self, step: int) -> Told:
        """Sample, and leave the gradient of the loss, clipped to norm 1, in the parameters.

        The loss is the mean of -A log p over all sampled tokens, A = (r - mean) / std within the
        group; on-policy, so no ratio is to be clipped.
        """
        prompts = self._prompts(step)
        start = prompts["input_ids"].shape[1]
        with torch.no_grad():
            self._model.eval()
            whole = self._model.generate(
                **prompts,
                do_sample=True,
                top_k=0,
                max_new_tokens=NUM_TOKENS,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        sampled = whole[:, start:]
        mask = self._until_end(sampled)
        attention = torch.cat([prompts["attention_mask"], mask.long()], dim=1)
        kept = sampled.shape[1] + 1
        logits = self._model(whole, attention_mask=attention, logits_to_keep=kept).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, sampled[..., None])[..., 0]
        rewards = self._rewards(sampled)
        groups = rewards.view(GROUPS, GROUP_SIZE)
        centred = groups - groups.mean(1, keepdim=True)
        advantages = (centred / (groups.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        self._model.zero_grad()
        (-(advantages * logprobs * mask).sum() / mask.sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        return Told(rewards.mean().item(), norm.item())

    def _prompts(self, step: int) -> dict[str, torch.Tensor]:
        texts = []
        for number in range(GROUPS):
            topic = _TOPICS[(step * GROUPS + number) % len(_TOPICS)]
            text = f"Write one short sentence about {topic}.\n"
            texts += [text] * GROUP_SIZE
        return dict(self._tokenizer(texts, return_tensors="pt", padding=True))

    def _until_end(self, sampled: torch.Tensor) -> torch.Tensor:
        """1 up to the first end token and for that, 0 behind it."""
        ended = (sampled == self._tokenizer.eos_token_id).long().cumsum(1)
        return (ended - (sampled == self._tokenizer.eos_token_id).long() == 0).float()

    def _rewards(self, sampled: torch.Tensor) -> torch.Tensor:
        texts = self._tokenizer.batch_decode(sampled, skip_special_tokens=True)
        letters = ["".join(filter(str.isalpha, text)).lower() for text in texts]
        return torch.tensor([each.count("e") / max(1, len(each)) for each in letters])
