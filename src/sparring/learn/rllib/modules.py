"""Our networks as RLlib's modules, so that what RLlib has learned is one of our models without any conversion.

`model_config` of each holds `network` (NetworkSpec), `observation` (FlatObservation), `critic` (NetworkSpec, if
there is one) and `seed`; RLlib adds its algorithm's own keys.
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

ILLEGAL = -1e9  # the logit of an illegal action; finite, since RLlib subtracts one from the other
ACTION = "rllib/action"  # the critic's input for the action

Batch = dict[str, Any]


class FlatNetwork(nn.Module):
    """A network that reads flat observations, with any number of axes before the last."""

    def __init__(self, model_config: dict[str, Any], spec: NetworkSpec, stream: int) -> None:
        super().__init__()
        self.observation = model_config["observation"]
        self.net = Network(spec, torch.Generator().manual_seed(model_config["seed"] * 16 + stream))

    def forward(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """The heads' outputs, and which choices are legal."""
        axes = rows.shape[:-1]
        leaves, legal = self.observation.unflatten(rows.reshape(-1, rows.shape[-1]))
        out = {name: value.reshape(*axes, *value.shape[1:]) for name, value in self.net(leaves).items()}
        return out, None if legal is None else legal.reshape(*axes, -1)


def distribution_inputs(out: dict[str, Tensor], legal: Tensor | None, *, illegal: float = ILLEGAL) -> Tensor:
    """What RLlib's distributions are made of: logits, or mean and log_std."""
    if "mean" in out:
        return torch.cat((out["mean"], out["log_std"].clamp(*LOG_STD)), dim=-1)
    return out["logits"] if legal is None else out["logits"].masked_fill(~legal, illegal)


class PolicyModule(TorchRLModule, ValueFunctionAPI):
    """A policy and state values: PPO, IMPALA, BC, MARWIL."""

    def setup(self) -> None:
        config: Any = self.model_config
        self.online = FlatNetwork(config, config["network"], 0)
        self.action_dist_cls = TorchCategorical if _is_discrete(config) else TorchDiagGaussian

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        return {Columns.ACTION_DIST_INPUTS: distribution_inputs(*self.online(batch[Columns.OBS]))}

    def _forward_train(self, batch: Batch, **kwargs: Any) -> Batch:
        out, legal = self.online(batch[Columns.OBS])  # EMBEDDINGS are handed back to compute_values
        return {Columns.ACTION_DIST_INPUTS: distribution_inputs(out, legal), Columns.EMBEDDINGS: out["value"]}

    def compute_values(self, batch: Batch, embeddings: Any = None) -> Tensor:
        return torch.as_tensor(self.online(batch[Columns.OBS])[0]["value"] if embeddings is None else embeddings)

    @property
    def published(self) -> Network:
        """The network of the published model."""
        return self.online.net


class _TargetNetwork:
    """A slow copy of the network."""

    def make_target_networks(self: Any) -> None:
        self.target = make_target_network(self.online)

    def get_target_network_pairs(self: Any) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.online, self.target)]


class TargetPolicyModule(_TargetNetwork, PolicyModule, TargetNetworkAPI):
    """A policy with a target network: APPO."""

    def forward_target(self, batch: Batch) -> Batch:
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: distribution_inputs(*self.target(batch[Columns.OBS]))}


class ActionValueModule(_TargetNetwork, DefaultDQNTorchRLModule):
    """Action values: DQN. RLlib explores and learns; −inf marks illegal actions for it."""

    def setup(self) -> None:
        config: Any = self.model_config
        self.uses_double_q, self.num_atoms = config["double_q"], 1
        self.epsilon_schedule = Scheduler(config["epsilon"], framework="torch")
        self.online = FlatNetwork(config, config["network"], 0)
        self.action_dist_cls = TorchCategorical

    def get_initial_state(self) -> Batch:
        return {}

    def get_non_inference_attributes(self) -> list[str]:
        return ["target"]

    def compute_q_values(self, batch: Batch) -> Batch:
        return {QF_PREDS: distribution_inputs(*self.online(batch[Columns.OBS]), illegal=-torch.inf)}

    def forward_target(self, batch: Batch) -> Batch:
        return {QF_PREDS: distribution_inputs(*self.target(batch[Columns.OBS]), illegal=-torch.inf)}

    @property
    def published(self) -> Network:
        """The network of the published model."""
        return self.online.net


class WholeNetwork(nn.Module):
    """A whole network in the place of RLlib's encoder; the head that RLlib puts behind it is the identity."""

    def __init__(self, network: FlatNetwork, head: str = "") -> None:
        super().__init__()
        self.network, self.head = network, head

    def forward(self, batch: Batch) -> Batch:
        rows = batch[Columns.OBS]
        if not self.head:
            return {ENCODER_OUT: distribution_inputs(*self.network(rows))}
        leaves, _ = self.network.observation.unflatten(rows)
        if Columns.ACTIONS in batch:
            leaves[ACTION] = batch[Columns.ACTIONS].reshape(len(rows), -1)
        out = self.network.net(leaves)[self.head]
        return {ENCODER_OUT: out if out.dim() == 2 else out.unsqueeze(1)}


class _SoftModule:
    """SAC, CQL and IQL: a policy, and one or two critics with the action as an input."""

    def setup(self) -> None:
        module: Any = self
        config, discrete = module.model_config, _is_discrete(module.model_config)
        module.twin_q = config["twin_q"]
        module.pi_encoder, module.pi = WholeNetwork(FlatNetwork(config, config["network"], 0)), nn.Identity()
        module.action_dist_cls = TorchCategorical if discrete else TorchSquashedGaussian
        if module.inference_only:
            return
        head = "logits" if discrete else "value"
        for stream, name in enumerate(("qf", "qf_twin") if module.twin_q else ("qf",), 1):
            setattr(module, f"{name}_encoder", WholeNetwork(FlatNetwork(config, config["critic"], stream), head))
            setattr(module, name, nn.Identity())

    @property
    def published(self: Any) -> Network:
        """The network of the published model."""
        found: Network = self.pi_encoder.network.net
        return found


class SacModule(_SoftModule, DefaultSACTorchRLModule):
    """SAC."""


class CqlModule(_SoftModule, DefaultCQLTorchRLModule):
    """CQL."""


class IqlModule(_SoftModule, DefaultIQLTorchRLModule):
    """IQL, which has a critic of states beside those of actions."""

    def setup(self) -> None:
        super().setup()
        if not self.inference_only:
            config: Any = self.model_config
            critic: NetworkSpec = config["critic"]
            states = replace(critic, inputs=tuple(leaf for leaf in critic.inputs if leaf.name != ACTION))
            self.vf_encoder, self.vf = WholeNetwork(FlatNetwork(config, states, 3), "value"), nn.Identity()


MODULES: dict[str, type] = {
    "PPO": PolicyModule,
    "IMPALA": PolicyModule,
    "APPO": TargetPolicyModule,
    "BC": PolicyModule,
    "MARWIL": PolicyModule,
    "DQN": ActionValueModule,
    "SAC": SacModule,
    "CQL": CqlModule,
    "IQL": IqlModule,
}


def critic_of(policy: NetworkSpec) -> NetworkSpec:
    """The critic beside a policy: the values of all choices, or the value of the action that is its input."""
    mean = next((head for head in policy.heads if head.name == "mean"), None)
    if mean is None:
        return replace(policy, heads=tuple(head for head in policy.heads if head.name == "logits"))
    action = Input(ACTION, (mean.units,))
    return replace(policy, inputs=(*policy.inputs, action), heads=(Head("value", 1),))


def _is_discrete(config: Any) -> bool:
    return any(head.name == "logits" for head in config["network"].heads)
