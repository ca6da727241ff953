"""Actors: the processes or services that play for a learner."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring.learn.actors.actor_spec import ActorSpec
    from sparring.learn.actors.protocol import Actors, Epsilon
    from sparring.learn.plan import Plan


def open_actors(
    plan: "Plan", spec: "ActorSpec", epsilon: "Epsilon | None" = None, *, forward: bool = False
) -> "Actors":
    """Actors of rollouts or of blocks, at their own pace or synchronous, as the spec says.

    `epsilon` gives actor i of n its own ε. `forward`: what they play goes on to replay shards, and is never read here.
    """
    if is_local(plan.on):
        from sparring.learn.actors.local import LocalActors

        return LocalActors(plan, spec, epsilon)
    from sparring.learn.actors.remote import RemoteActors  # runs on one machine need no sockets

    return RemoteActors(plan, spec, epsilon, forward=forward)


def is_local(url: str) -> bool:
    """Whether all actors run on this machine and share its memory."""
    return url.startswith("local:")
