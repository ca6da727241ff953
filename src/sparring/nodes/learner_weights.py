"""A learner's weights as one float32 vector, in the order of its network's parameters: what nodes exchange."""

from sparring.learn.algorithms.learner import TorchLearner
from sparring.learn.optim import Rmsprop
from sparring.learn.protocol import Learner
from sparring.nets.shapes import parameters
from sparring.nodes.codecs import Layout
from sparring.wire.chunk import Array


class LearnerWeights:
    """Reads and changes the weights that a learner learns, between two iterations of its topology. Those of A3C lie in
    memory that its workers change meanwhile, without a lock."""

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner, TorchLearner)  # as all algorithms are that nodes learn
        self._learner = learner
        self._shared = learner.optimiser if isinstance(learner.optimiser, Rmsprop) else None
        self.layout = Layout(tuple(parameters(learner.network).items()))

    def read(self) -> Array:
        """A copy."""
        if self._shared is not None:
            self._shared.pull()
        return self.layout.flat(self._learner.weights())

    def write(self, vector: Array) -> None:
        """Make them these."""
        self._learner.set_weights(self.layout.by_name(vector))
        if self._shared is not None:
            self._shared.push()

    def add(self, change: Array) -> None:
        """Change them by that much."""
        if self._shared is None:
            self.write(self.read() + change)
        else:
            self._learner.set_weights(self.layout.by_name(change))
            self._shared.push(add=True)
