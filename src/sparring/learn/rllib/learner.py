"""RLlib's learner as the platform sees one: a network, a count of updates, weights, and bytes."""

from typing import Any

from ray.rllib.core import COMPONENT_OPTIMIZER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from sparring.learn.rllib.state import from_tree, to_tree
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import pack, unpack

_KEPT = ("curr_log_alpha", "moving_avg_sqd_adv_norms_per_module")  # that RLlib's own state forgets: SAC's, MARWIL's


class RllibLearner:
    """What an `Algorithm` of RLlib learns with, in this process."""

    def __init__(self, algorithm: Any, network: NetworkSpec) -> None:
        self._algorithm, self.network = algorithm, network
        self.updates = 0

    @property
    def module(self) -> Any:
        """The RLModule that learns."""
        return self._learner.module[DEFAULT_MODULE_ID].unwrapped()

    @property
    def _learner(self) -> Any:
        return self._algorithm.learner_group._learner

    def count(self) -> None:
        """Bring `updates` up to date: each is one call of RLlib's learner, which may hold several epochs."""
        self.updates = int(self._learner._weights_seq_no)

    def weights(self) -> Weights:
        found: Weights = self.module.acting.weights()
        return found

    def save(self) -> bytes:
        state = self._learner.get_state(components=[COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER])
        parts = {name: state[name] for name in (COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER, WEIGHTS_SEQ_NO)}
        beside = {name: _values(getattr(self._learner, name)) for name in _KEPT if hasattr(self._learner, name)}
        return pack({"state": to_tree(parts), "beside": to_tree(beside)})

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        self._learner.set_state(from_tree(tree["state"]))
        for name, values in from_tree(tree["beside"]).items():
            for module, value in values.items():
                getattr(self._learner, name)[module].data.copy_(value)
        self.count()
        if self._algorithm.env_runner_group is not None:
            self._algorithm.env_runner_group.sync_weights(
                from_worker_or_learner_group=self._algorithm.learner_group, inference_only=True
            )


def _values(found: Any) -> dict[str, Any]:
    return {module: value.detach().clone() for module, value in found.items() if module == DEFAULT_MODULE_ID}
