"""The chain of chain_game.py, whose games break when they are played: for tests of what is said then."""

from chain_game import Chain


class Breaking(Chain):
    def step(self, actions):
        raise ZeroDivisionError("the chain broke")


def chain(n=1):
    return Breaking(n)
