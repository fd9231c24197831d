"""The in-process game: a scripted model must be treated as the pipeline treats a real one."""

import random
from types import SimpleNamespace

import pytest
import torch

from infra.recipes.demo.sampling import play
from infra.recipes.demo.task import TOKEN_IDS, VOCABULARY_SIZE, Problem, encode
from infra.recipes.demo.warmup import build_model, demonstration


class Scripted:
    """Says one symbol after the other, whatever it sees; each row has its script."""

    def __init__(self, *scripts):
        self.scripts = [encode(script) for script in scripts]
        self.step = 0

    def __call__(self, input_ids, past_key_values, use_cache, logits_to_keep):
        logits = torch.full((len(self.scripts), 1, VOCABULARY_SIZE), -1e9)
        for row, script in enumerate(self.scripts):
            logits[row, 0, script[min(self.step, len(script) - 1)]] = 0.0
        self.step += 1
        return SimpleNamespace(logits=logits, past_key_values=None)


FORCED = ["+"] * 5  # what the model would have said while the calculator speaks
CALL = ["<call>", *"37+58", "</call>"]


def played(*scripts):
    return play(Scripted(*scripts), [Problem(37, 58)] * len(scripts), torch.Generator())


def test_a_call_is_answered_and_the_answer_is_not_the_models():
    (game,) = played([*CALL, *FORCED, *"095", "<eos>"])
    assert list(game.response) == encode([*CALL, "<res>", *"095", "</res>", *"095", "<eos>"])
    assert game.sampled == (True,) * 7 + (False,) * 5 + (True,) * 4
    assert game.solved
    assert game.called


def test_rows_do_not_disturb_each_other():
    games = played(
        [*"095", "<eos>"],
        [*CALL, *FORCED, *"111", "<eos>"],
        ["<call>", "T", "</call>", *FORCED, *"095", "<eos>"],
        ["</call>"],
        [*CALL, *FORCED, "</call>"],
        ["T"],
    )
    assert [game.solved for game in games] == [True, False, True, False, False, False]
    assert [game.called for game in games] == [False, True, True, False, True, False]
    assert [len(game.response) for game in games] == [4, 16, 12, 1, 13, 18]
    assert list(games[2].response[3:8]) == encode(["<res>", *"???", "</res>"])


def test_logprobs_are_of_what_was_drawn():
    model = build_model(0)
    problems = [Problem(1, 2), Problem(37, 58)]
    for game in play(model, problems, torch.Generator().manual_seed(0)):
        ids = torch.tensor([game.prompt + game.response])
        whole = torch.log_softmax(model(input_ids=ids).logits[0, 8:-1].detach(), -1)
        for place, (token, sampled) in enumerate(zip(game.response, game.sampled, strict=True)):
            expected = float(whole[place, token]) if sampled else 0.0
            assert game.logprobs[place] == pytest.approx(expected, abs=1e-4)


def test_a_demonstration_labels_what_the_model_should_write():
    problem = Problem(37, 58)
    tokens, labels = demonstration(problem, random.Random(0), direct=0.0)
    asked = [*CALL, "<res>", *"095", "</res>", *"095", "<eos>"]
    assert tokens == encode(["A", ":", *"37+58", "=", "?", *asked])
    written = [label for label in labels if label >= 0]
    assert written == encode([*CALL, *"095", "<eos>"])
    assert len(labels) == len(tokens)
    tokens, labels = demonstration(problem, random.Random(0), direct=1.0)
    assert len(tokens) == 13
    assert labels[9:] == tokens[9:]
    assert tokens[-1] == TOKEN_IDS["<eos>"]
