"""A policy by name: built in, or `module:name` of the user's own: a class that is made with a seat's action leaf and
offers what policies.Policy lists. Never from a card or a request: any code may stand behind such a name."""

import difflib

from sparring.errors import ConfigError, Missing
from sparring.games.spec import Leaf
from sparring.nets.policies import BUILT_IN, Policy
from sparring.user_code import found_code


def open_policy(name: str, action: Leaf) -> Policy:
    """The policy of that name for such actions; Missing or ConfigError where there is none or it does not suit."""
    if name in BUILT_IN:
        return BUILT_IN[name](action)
    if ":" not in name:
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        do = f"Did you mean {near[0]!r}" if near else f"Choose one of {', '.join(BUILT_IN)}, or give module:name"
        raise Missing(f"there is no policy {name!r}", where="train.policy", do=do)
    made = found_code(name, "policy")
    if not isinstance(made, type):
        raise _wrong(name, f"it is a {type(made).__name__}", "Name a class")
    policy: Policy = made(action)
    if not callable(getattr(policy, "explore", None)):
        raise _wrong(name, "it has no explore()", "Offer what policies.Policy in nets/policies.py lists")
    deployed = getattr(policy, "deployed", None)
    if deployed not in BUILT_IN:
        raise _wrong(
            name,
            f"deployed is {deployed!r}, and a model's card names no code",
            f"Set it to one of {', '.join(BUILT_IN)}: how its outputs choose where nobody explores",
        )
    BUILT_IN[deployed](action)  # which must suit the actions, too
    return policy


def _wrong(name: str, wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where=f"policy {name!r}", do=do)
