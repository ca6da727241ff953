"""Actors: the processes or services that play for a learner."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparring.learn.actors.actor_spec import ActorSpec
    from sparring.learn.actors.protocol import AsyncActors, SyncActors
    from sparring.learn.plan import Plan


def open_async_actors(
    plan: "Plan", spec: "ActorSpec", epsilon: Callable[[int, int], float] | None = None, *, forward: bool = False
) -> "AsyncActors[Any]":
    """Actors at their own pace: of rollouts or of blocks, as the spec says.

    `epsilon` gives actor i of n its own ε. `forward`: what they play goes on to replay shards, and is never read here.
    """
    if is_local(plan.on):
        from sparring.learn.actors.local import LocalAsyncActors

        return LocalAsyncActors(plan, spec, epsilon)
    from sparring.learn.actors.remote import RemoteAsyncActors  # runs on one machine need no sockets

    return RemoteAsyncActors(plan, spec, epsilon, forward=forward)


def open_sync_actors(plan: "Plan", spec: "ActorSpec") -> "SyncActors":
    """Actors that play each version of the weights once."""
    if is_local(plan.on):
        from sparring.learn.actors.local import LocalSyncActors

        return LocalSyncActors(plan, spec)
    from sparring.learn.actors.remote import RemoteSyncActors

    return RemoteSyncActors(plan, spec)


def is_local(url: str) -> bool:
    """Whether all actors run on this machine and share its memory."""
    return url.startswith("local:")
