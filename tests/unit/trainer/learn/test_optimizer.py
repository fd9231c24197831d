import numpy as np
import pytest
import torch

from consumers.trainer.learn.optimizer import build_adamw, learning_rate
from schemas.config import TrainerSection


@pytest.mark.parametrize(
    ("warmup_steps", "rates"),
    [(4, [0.25, 0.5, 0.75, 1.0, 1.0]), (1, [1.0, 1.0]), (0, [1.0, 1.0])],
)
def test_the_rate_rises_linearly_then_stays(warmup_steps, rates):
    section = TrainerSection(lr=1.0, warmup_steps=warmup_steps)
    assert [learning_rate(section, step) for step in range(1, len(rates) + 1)] == rates


def test_adamw_equals_its_formula():
    section = TrainerSection(lr=0.1, betas=(0.8, 0.9), weight_decay=0.5)
    matrix = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
    vector = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = build_adamw([matrix, vector], section)
    gradients = [[0.5, -1.0, 2.0], [0.1, 0.0, -1.0], [1.0, 1.0, 0.3]]
    weights, decay = np.array([1.0, -2.0, 3.0]), np.array([0.5, 0.5, 0.0])
    first, second = np.zeros(3), np.zeros(3)
    for count, gradient in enumerate(gradients, start=1):
        matrix.grad, vector.grad = torch.tensor([gradient[:2]]), torch.tensor(gradient[2:])
        optimizer.step()
        g = np.array(gradient)
        first = 0.8 * first + 0.2 * g
        second = 0.9 * second + 0.1 * g**2
        direction = (first / (1 - 0.8**count)) / (np.sqrt(second / (1 - 0.9**count)) + 1e-8)
        weights = weights - 0.1 * decay * weights - 0.1 * direction
    measured = torch.cat([matrix.flatten(), vector]).tolist()
    assert measured == pytest.approx(weights.tolist(), abs=1e-6)
