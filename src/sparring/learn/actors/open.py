"""Who plays for a plan: processes that share memory on this machine, or services of another host."""

from collections.abc import Callable
from typing import Any

from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.local import LocalAsyncActors, LocalSyncActors
from sparring.learn.actors.protocol import AsyncActors, SyncActors
from sparring.learn.plan import Plan


def open_async_actors(
    plan: Plan, part: ActorSpec, boldness: Callable[[int, int], float] | None = None, *, passing: bool = False
) -> AsyncActors[Any]:
    """Actors at their own pace: of rollouts or of blocks, as the part says. `passing`: others take what they play."""
    if is_local(plan.on):
        return LocalAsyncActors(plan, part, boldness)
    from sparring.learn.actors.remote import RemoteAsyncActors  # whoever stays on one machine needs no sockets

    return RemoteAsyncActors(plan, part, boldness, passing=passing)


def open_sync_actors(plan: Plan, part: ActorSpec) -> SyncActors:
    """Actors that play each version once."""
    if is_local(plan.on):
        return LocalSyncActors(plan, part)
    from sparring.learn.actors.remote import RemoteSyncActors

    return RemoteSyncActors(plan, part)


def is_local(url: str) -> bool:
    """Whether shared memory reaches all."""
    return url.startswith("local:")
