"""Our networks as RLlib's modules, so that what RLlib learned is a model of ours without any copying of shapes.

`model_config` of each holds `network` (NetworkSpec), `packing` (Packing), `critic` (NetworkSpec, where there is one)
and `seed`; RLlib adds its algorithm's own keys.
"""

from typing import Any

import torch
from msgspec.structs import replace
from ray.rllib.algorithms.cql.torch.default_cql_torch_rl_module import DefaultCQLTorchRLModule
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.iql.torch.default_iql_torch_rl_module import DefaultIQLTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchSquashedGaussian,
)
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.rl_module.apis import TargetNetworkAPI, ValueFunctionAPI
from ray.rllib.core.rl_module.apis.target_network_api import TARGET_NETWORK_ACTION_DIST_INPUTS
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.schedules.scheduler import Scheduler
from torch import Tensor, nn

from sparring.nets.policies import LOG_STD
from sparring.nets.torch_network import Network
from sparring.wire.network import Head, Input, NetworkSpec

NEVER = -1e9  # the logit of what is not legal; finite, since RLlib subtracts one from the other
ACTION = "rllib/action"  # the leaf by which a critic is told what was done

Batch = dict[str, Any]


def given(module: Any) -> dict[str, Any]:
    """The module's `model_config`."""
    config: dict[str, Any] = module.model_config
    return config


class Seeing(nn.Module):
    """A network that reads packed rows."""

    def __init__(self, model_config: dict[str, Any], spec: NetworkSpec, stream: int) -> None:
        super().__init__()
        self.packing = model_config["packing"]
        self.net = Network(spec, torch.Generator().manual_seed(model_config["seed"] * 16 + stream))

    def forward(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        leaves, legal = self.packing.unpacked(rows)
        return self.net(leaves), legal


def chosen_by(out: dict[str, Tensor], legal: Tensor | None) -> Tensor:
    """What RLlib's distributions are made of: logits, or mean and log_std."""
    if "mean" in out:
        return torch.cat((out["mean"], out["log_std"].clamp(*LOG_STD)), dim=-1)
    return out["logits"] if legal is None else out["logits"].masked_fill(~legal, NEVER)


class PolicyModule(TorchRLModule, ValueFunctionAPI):
    """A policy beside its values: PPO, IMPALA, BC, MARWIL."""

    def setup(self) -> None:
        config = given(self)
        self.seeing = Seeing(config, config["network"], 0)
        discrete = any(head.name == "logits" for head in config["network"].heads)
        self.action_dist_cls = TorchCategorical if discrete else TorchDiagGaussian

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        rows, around = _flat(batch[Columns.OBS])
        out, legal = self.seeing(rows)
        return {Columns.ACTION_DIST_INPUTS: _around(chosen_by(out, legal), around)}

    def _forward_train(self, batch: Batch, **kwargs: Any) -> Batch:
        rows, around = _flat(batch[Columns.OBS])
        out, legal = self.seeing(rows)
        return {
            Columns.ACTION_DIST_INPUTS: _around(chosen_by(out, legal), around),
            Columns.EMBEDDINGS: _around(out["value"], around),  # handed back to compute_values
        }

    def compute_values(self, batch: Batch, embeddings: Any = None) -> Tensor:
        if embeddings is not None:
            return torch.as_tensor(embeddings)
        rows, around = _flat(batch[Columns.OBS])
        return _around(self.seeing(rows)[0]["value"], around)

    @property
    def acting(self) -> Network:
        """What is published."""
        return self.seeing.net


class SlowPolicyModule(PolicyModule, TargetNetworkAPI):
    """The same with a slow copy of the policy: APPO."""

    def make_target_networks(self) -> None:
        self.slow = make_target_network(self.seeing)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.seeing, self.slow)]

    def forward_target(self, batch: Batch) -> Batch:
        rows, around = _flat(batch[Columns.OBS])
        out, legal = self.slow(rows)
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: _around(chosen_by(out, legal), around)}


class ValueModule(DefaultDQNTorchRLModule):
    """Action values: DQN. How it explores and learns is RLlib's; −inf says to it what is not legal."""

    def setup(self) -> None:
        config = given(self)
        self.uses_double_q, self.num_atoms = config["double_q"], 1
        self.epsilon_schedule = Scheduler(config["epsilon"], framework="torch")
        self.seeing = Seeing(config, config["network"], 0)
        self.action_dist_cls = TorchCategorical

    def get_initial_state(self) -> Batch:
        return {}

    def get_non_inference_attributes(self) -> list[str]:
        return ["slow"]

    def make_target_networks(self) -> None:
        self.slow = make_target_network(self.seeing)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.seeing, self.slow)]

    def compute_q_values(self, batch: Batch) -> Batch:
        return {QF_PREDS: _legal_values(*self.seeing(batch[Columns.OBS]))}

    def forward_target(self, batch: Batch) -> Batch:
        return {QF_PREDS: _legal_values(*self.slow(batch[Columns.OBS]))}

    @property
    def acting(self) -> Network:
        """What is published."""
        return self.seeing.net


class Encoding(nn.Module):
    """A whole network in the place of RLlib's encoder; its head, behind it, is the identity."""

    def __init__(self, seeing: Seeing, head: str = "") -> None:
        super().__init__()
        self.seeing, self.head = seeing, head

    def forward(self, batch: Batch) -> Batch:
        rows = batch[Columns.OBS]
        if self.head:
            leaves, _ = self.seeing.packing.unpacked(rows)
            if Columns.ACTIONS in batch:
                leaves[ACTION] = batch[Columns.ACTIONS].reshape(len(rows), -1)
            out = self.seeing.net(leaves)[self.head]
            return {ENCODER_OUT: out if out.dim() == 2 else out.unsqueeze(1)}
        return {ENCODER_OUT: chosen_by(*self.seeing(rows))}


def set_up_soft(module: Any) -> None:
    """What SAC, CQL and IQL set up alike: a policy, and one or two critics that are told the action."""
    config = given(module)
    module.twin_q = config["twin_q"]
    module.pi_encoder, module.pi = Encoding(Seeing(config, config["network"], 0)), nn.Identity()
    discrete = any(head.name == "logits" for head in config["network"].heads)
    module.action_dist_cls = TorchCategorical if discrete else TorchSquashedGaussian
    if module.inference_only:
        return
    head = "logits" if discrete else "value"
    for stream, name in enumerate(("qf", "qf_twin") if module.twin_q else ("qf",), 1):
        setattr(module, f"{name}_encoder", Encoding(Seeing(config, config["critic"], stream), head))
        setattr(module, name, nn.Identity())


class _Acting:
    """What is published of those three."""

    @property
    def acting(self: Any) -> Network:
        found: Network = self.pi_encoder.seeing.net
        return found


class SoftModule(_Acting, DefaultSACTorchRLModule):
    """SAC."""

    def setup(self) -> None:
        set_up_soft(self)


class ConservativeModule(_Acting, DefaultCQLTorchRLModule):
    """CQL."""

    def setup(self) -> None:
        set_up_soft(self)


class ImplicitModule(_Acting, DefaultIQLTorchRLModule):
    """IQL, with a critic that is told nothing beside."""

    def setup(self) -> None:
        set_up_soft(self)
        if not self.inference_only:
            config = given(self)
            seeing = Seeing(config, state_values(config["critic"]), 3)
            self.vf_encoder, self.vf = Encoding(seeing, "value"), nn.Identity()


MODULES: dict[str, type] = {
    "PPO": PolicyModule,
    "IMPALA": PolicyModule,
    "APPO": SlowPolicyModule,
    "BC": PolicyModule,
    "MARWIL": PolicyModule,
    "DQN": ValueModule,
    "SAC": SoftModule,
    "CQL": ConservativeModule,
    "IQL": ImplicitModule,
}


def critic_of(policy: NetworkSpec) -> NetworkSpec:
    """A critic beside the policy: all its choices' values, or the value of the one action that it is told."""
    mean = next((head for head in policy.heads if head.name == "mean"), None)
    if mean is None:
        return replace(policy, heads=tuple(head for head in policy.heads if head.name == "logits"))
    told = Input(ACTION, (mean.units,))
    return replace(policy, inputs=(*policy.inputs, told), heads=(Head("value", 1),))


def state_values(critic: NetworkSpec) -> NetworkSpec:
    """The critic that is not told the action."""
    return replace(critic, inputs=tuple(leaf for leaf in critic.inputs if leaf.name != ACTION))


def _legal_values(out: dict[str, Tensor], legal: Tensor | None) -> Tensor:
    return out["logits"] if legal is None else out["logits"].masked_fill(~legal, -torch.inf)


def _flat(rows: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Rows [n, width] of a batch that may have more axes before them, and those."""
    return rows.reshape(-1, rows.shape[-1]), tuple(rows.shape[:-1])


def _around(out: Tensor, around: tuple[int, ...]) -> Tensor:
    """The rows [n, …] with the axes again that `_flat` took."""
    return out.reshape(*around, *out.shape[1:])
