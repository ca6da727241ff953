"""The `aws` commands that remove what a cluster left. A person runs them, knowing what goes: we never delete."""

import shlex
from collections.abc import Iterable, Sequence

PLAIN = {  # kind → operation and option of what goes with one command
    "spot request": "cancel-spot-instance-requests --spot-instance-request-ids",
    "launch template": "delete-launch-template --launch-template-id",
    "network interface": "delete-network-interface --network-interface-id",
    "key pair": "delete-key-pair --key-name",
}


def commands(kind: str, id: str, region: str, holder: str = "") -> tuple[str, ...]:
    """How one thing of a region is removed. `holder` is what keeps it: the instance whose disk it is, or an
    address's association."""

    def ec2(words: str, *values: str) -> str:
        return f"aws ec2 {words} {shlex.join(values)} --region {region}"

    if kind in PLAIN:
        return (ec2(PLAIN[kind], id),)
    if kind == "instance":
        return _ended(id, region)
    if kind == "volume":
        return _ended(holder, region) if holder else (ec2("delete-volume --volume-id", id),)
    if kind == "elastic address":
        freed = (ec2("disassociate-address --association-id", holder),) if holder else ()
        return (*freed, ec2("release-address --allocation-id", id))
    return (ec2("delete-security-group --group-id", id),)


def group(id: str, region: str, named_by: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """How a security group is removed: not before no rule (group and id) of another one names it."""
    freed = [
        f"aws ec2 revoke-security-group-ingress --group-id {other} --security-group-rule-ids {rule} --region {region}"
        for other, rule in named_by
    ]
    return (*freed, *commands("security group", id, region))


def _ended(instance: str, region: str) -> tuple[str, ...]:
    at = f"--instance-ids {instance} --region {region}"
    return f"aws ec2 terminate-instances {at}", f"aws ec2 wait instance-terminated {at}"


def profile(name: str, roles: Sequence[str]) -> tuple[str, ...]:
    """How an instance profile is removed."""
    at = f"--instance-profile-name {shlex.quote(name)}"
    freed = [f"aws iam remove-role-from-instance-profile {at} --role-name {shlex.quote(role)}" for role in roles]
    return (*freed, f"aws iam delete-instance-profile {at}")


def role(name: str, inline: Sequence[str], attached: Sequence[str]) -> tuple[str, ...]:
    """How a role is removed, once no instance profile has it."""
    at = f"--role-name {shlex.quote(name)}"
    return (
        *(f"aws iam delete-role-policy {at} --policy-name {shlex.quote(policy)}" for policy in inline),
        *(f"aws iam detach-role-policy {at} --policy-arn {shlex.quote(policy)}" for policy in attached),
        f"aws iam delete-role {at}",
    )


PHASES = (" cancel-spot-", " terminate-instances ", " wait ", " revoke-")


def script(commands: Iterable[str]) -> list[str]:
    """Each command once, in an order that works: what would start anew first, every end asked for before any is
    awaited, and no security group deleted while a rule of another names it."""
    wanted = list(dict.fromkeys(commands))
    phases = [[command for command in wanted if mark in command] for mark in PHASES]
    early = {command for phase in phases for command in phase}
    return [
        *(command for phase in phases for command in phase),
        *(command for command in wanted if command not in early),
    ]
