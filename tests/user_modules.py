"""Torch modules as a user would write them for `network=`, sound and otherwise."""

import torch
from torch import nn

calls = 0


class Mlp(nn.Module):
    """The page's own example."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs[0], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.heads = nn.ModuleDict({name: nn.Linear(64, units) for name, units in outputs.items()})

    def forward(self, observation):
        features = self.body(observation)
        return {name: head(features) for name, head in self.heads.items()}


class Lazy(nn.Module):
    """Any shape, lazily sized, a tuple in the order of heads; running statistics, dropout, a layer used twice."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.tied = nn.Sequential(*[nn.Linear(32, 32)] * 2, nn.LayerNorm(32), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(32, units) for units in outputs.values())

    def forward(self, observation):
        features = self.tied(self.body(observation))
        return tuple(head(features) for head in self.heads)


class Images(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inputs[0], 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(32))
        self.heads = nn.ModuleDict({name: nn.Linear(32, units) for name, units in outputs.items()})

    def forward(self, image):
        assert image.dtype == torch.float32
        features = self.body(image).relu()
        return {name: head(features) for name, head in self.heads.items()}


class Recurrent(nn.Module):
    state_size = 16

    def __init__(self, inputs, outputs):
        super().__init__()
        self.memory = nn.GRUCell(inputs[0], self.state_size)
        self.heads = nn.ModuleDict({name: nn.Linear(self.state_size, units) for name, units in outputs.items()})

    def forward(self, observation, state):
        state = self.memory(observation, state)
        return {name: head(state) for name, head in self.heads.items()}, state


class RecurrentImages(nn.Module):
    """A constant mask of infinities, and an encoder before the memory."""

    state_size = 2 * 12

    def __init__(self, inputs, outputs):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(inputs[0], 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))
        self.memory = nn.LSTMCell(3, 12)
        self.heads = nn.ModuleDict({name: nn.Linear(12, units) for name, units in outputs.items()})

    def forward(self, image, state):
        share = (self.encoder(image) + self.mask).softmax(1)
        hidden, cell = self.memory(share, tuple(state.chunk(2, 1)))
        return {name: head(hidden) for name, head in self.heads.items()}, torch.cat((hidden, cell), 1)


def made(inputs, outputs):
    return Mlp(inputs, outputs)


def of_a_seat(seat):
    return Mlp(seat.observation[0].shape, {"logits": seat.action.masks, "value": 1})


one = Mlp((4,), {"logits": 2, "value": 1})


class OtherArguments(Mlp):
    def __init__(self, hidden, depth, width):
        super().__init__((4,), {})


class Forgetful(Recurrent):
    def forward(self, observation, state):
        return super().forward(observation, state)[0]


class WithoutValue(Mlp):
    def forward(self, observation):
        return {"logits": super().forward(observation)["logits"]}


class WrongUnits(Mlp):
    def forward(self, observation):
        out = super().forward(observation)
        return out | {"logits": out["logits"][:, :1]}


class MeanOverBatch(Mlp):
    def forward(self, observation):
        return super().forward(observation.mean(0, keepdim=True))


class NotFinite(Mlp):
    def forward(self, observation):
        return {name: value / 0.0 * 0.0 for name, value in super().forward(observation).items()}


class Branching(Mlp):
    """Its trace knows one side of the branch alone."""

    def forward(self, observation):
        out = super().forward(observation)
        return out if len(observation) > 1 else {name: -value for name, value in out.items()}


class BranchingOnValues(Mlp):
    """Both sides agree on small numbers, so that no trial shows the difference."""

    def forward(self, observation):
        return super().forward(observation / 50 if observation.abs().max() > 50 else observation)


class ComparingShapes(Mlp):
    def forward(self, observation):
        assert observation.shape[1] == 4
        return super().forward(observation if observation.shape[0] else observation[:0])


class CutBatch(Mlp):
    def forward(self, observation):
        return super().forward(observation[:16])


class FixedBatch(Mlp):
    """Its graph has the batch size of the trace in it."""

    def forward(self, observation):
        return super().forward(observation.reshape(len(observation), 4))


class DetachedValue(Mlp):
    def forward(self, observation):
        out = super().forward(observation)
        return out | {"value": out["value"].detach()}


class NotExported(Mlp):
    def forward(self, observation):
        weight = torch.linalg.eigvals(self.body[2].weight).real
        return {name: value + weight.mean() for name, value in super().forward(observation).items()}


class Double(Mlp):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))


class Raising(Mlp):
    """Sound when it is checked, and broken once it learns."""

    def forward(self, observation):
        if self.training:
            raise ValueError("no such rows")
        return super().forward(observation)
