"""Rollouts to score."""

from schemas.chat import ChatMessage
from schemas.headers import Purpose
from schemas.tokens import Tokens
from schemas.work import Progress, RewardData, Rollout, RolloutStatus, Turn, TurnKind


def rollout(
    ground_truth=None,
    *,
    rollout_id="3.1",
    group=3,
    index=1,
    purpose=Purpose.TRAIN,
    text="so 42",
):
    """A prompt of two tokens, an assistant turn, a tool result and a last turn."""
    return Rollout(
        rollout_id=rollout_id,
        group=group,
        index=index,
        purpose=purpose,
        row=5,
        status=RolloutStatus.COMPLETED,
        finish_reason="stop",
        worker="rollout-0",
        agent="tool",
        prompt_hash="",
        reward_data=RewardData(
            data_source="test", ground_truth=ground_truth, extra_info={"level": 2}
        ),
        progress=Progress(
            num_prompt_tokens=2,
            turns=(
                Turn(kind=TurnKind.PROMPT, start=0, stop=2),
                Turn(kind=TurnKind.ASSISTANT, start=2, stop=4),
                Turn(kind=TurnKind.TOOL, start=4, stop=5),
                Turn(kind=TurnKind.ASSISTANT, start=5, stop=7),
            ),
            messages=(
                ChatMessage(role="user", content="6*7?"),
                ChatMessage(role="assistant", content="I ask."),
                ChatMessage(role="tool", content="42", tool_call_id="3.1:0:0"),
                ChatMessage(role="assistant", content=text),
            ),
            tokens=Tokens(
                token_ids=[10, 11, 12, 13, 14, 15, 16],
                mask=((0, 2), (1, 2), (0, 1), (1, 2)),
                versions=((-1, 2), (4, 2), (-1, 1), (5, 2)),
                logprobs=[0, 0, -0.5, -0.25, 0, -1.5, -2.0],
            ),
        ),
    )
