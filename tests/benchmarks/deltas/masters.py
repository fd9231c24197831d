"""AdamW with one stream of gradients and float32 masters for several learning rates."""

from collections.abc import Mapping

import torch

Tensors = dict[str, torch.Tensor]


class Moments:
    """First and second moments of Adam (Kingma & Ba, 2015), bias corrected.

    Args:
        parameters: By name.
        betas: Decay of the moments.
        epsilon: Added to the root of the second.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        betas: tuple[float, float],
        epsilon: float = 1e-8,
    ) -> None:
        self._parameters = parameters
        self._first, self._second = betas
        self._epsilon = epsilon
        self._step = 0
        self._mean = {name: torch.zeros_like(each) for name, each in parameters.items()}
        self._square = {name: torch.zeros_like(each) for name, each in parameters.items()}

    @torch.no_grad()
    def directions(self) -> Tensors:
        """What the learning rate is multiplied by; takes the gradients' place in memory."""
        self._step += 1
        root = (1 - self._second**self._step) ** 0.5
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            mean, square = self._mean[name], self._square[name]
            mean.lerp_(gradient, 1 - self._first)
            square.mul_(self._second).addcmul_(gradient, gradient, value=1 - self._second)
            torch.sqrt(square, out=gradient).div_(root).add_(self._epsilon)
            torch.div(mean, gradient, out=gradient).div_(1 - self._first**self._step)
        return {name: parameter.grad for name, parameter in self._parameters.items()}


class Masters:
    """Float32 weights under one learning rate, and what is published of them.

    Args:
        published: Starting weights, bfloat16.
        lr: Learning rate; weight decay is 0.
        seed: Of the dither: a master begins anywhere in the cell of float32 numbers that are
            rounded to its published value, as after a long run. From the published values
            themselves, as a run begins, fewer elements would change.
    """

    def __init__(self, published: Tensors, lr: float, seed: int) -> None:
        self.lr = lr
        self.published = published
        generator = torch.Generator().manual_seed(seed)
        self._masters = {name: _dithered(each, generator) for name, each in published.items()}
        for name, each in published.items():
            assert torch.equal(self._masters[name].bfloat16(), each), name

    def advance(self, directions: Tensors) -> tuple[Tensors, Tensors]:
        """One step; gives what was published before and what is now."""
        before = self.published
        for name, direction in directions.items():
            self._masters[name].sub_(direction, alpha=self.lr)
        self.published = {name: each.bfloat16() for name, each in self._masters.items()}
        return before, self.published


def _dithered(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Uniform over the float32 numbers whose nearest bfloat16 these are; 0 stays 0."""
    bits = values.float().view(torch.int32)
    noise = torch.randint(-0x7FFF, 0x8000, bits.shape, dtype=torch.int32, generator=generator)
    noise[values == 0] = 0
    return (bits + noise).view(torch.float32)
