"""What clusters left behind: everything of ours or of Ray's that is still there, in the order in which it can go.

Ours carries the tag of this package or of Ray, or, where AWS keeps no tag or Ray sets none, a name that either gives.
"""

import datetime
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

from sparring.hosts.cluster import TAG
from sparring.hosts.cluster.aws import client, refusals, session

RAY_TAG = "ray-cluster-name"
PREFIXES = ("ray-autoscaler", "sparring-")
ENDED = {"terminated", "shutting-down"}

Kind = Literal[
    "spot request",
    "instance",
    "volume",
    "elastic address",
    "network interface",
    "launch template",
    "security group",
    "key pair",
    "instance profile",
    "role",
]


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is still there."""

    kind: Kind
    id: str
    region: str  # "global" for what is an account's
    commands: tuple[str, ...]  # that remove it, once those of what stands above it have run
    cluster: str = ""  # "" where nothing says which
    name: str = ""
    state: str = ""
    costs: str = ""  # what it costs at rest; "" is nothing
    age_s: float | None = None  # None where AWS does not say


def find(regions: Sequence[str], now: datetime.datetime, cluster: str = "") -> list[Leftover]:
    """All that is left in these regions and in the account; of one cluster (and of unknown ones) where it is named."""
    found: list[Leftover] = []
    opened = session()
    for region in regions:
        ec2 = client(opened, "ec2", region)
        with refusals(region):
            found += _Region(ec2, region, now).everything()
    iam = client(opened, "iam", regions[0])
    with refusals("IAM"):
        found += [*_profiles(iam, now), *_roles(iam, now)]
    mine = [one for one in found if not cluster or one.cluster in ("", cluster)]
    order = get_args(Kind)
    return sorted(mine, key=lambda one: order.index(one.kind))


def all_regions(region: str) -> list[str]:
    """Every region that this account can use."""
    ec2 = client(session(), "ec2", region)
    with refusals(region):
        return sorted(str(one["RegionName"]) for one in ec2.describe_regions()["Regions"])


class _Region:
    """One region's leftovers. Whose an untagged volume or address is shows the instance that holds it."""

    def __init__(self, ec2: Any, region: str, now: datetime.datetime) -> None:
        self._ec2, self._region, self._now = ec2, region, now
        self._owner: dict[str, str] = {}  # instance → cluster
        self._goes_with: dict[str, str] = {}  # volume → the instance whose end is its own
        self._rules: list[dict[str, Any]] | None = None  # of all security groups, once one of ours is met

    def everything(self) -> list[Leftover]:
        requests = [self._spot(one) for one in self._ours("describe_spot_instance_requests", "SpotInstanceRequests")]
        instances = [self._instance(one) for one in self._ours("describe_instances", "Reservations")]
        return [
            *requests,
            *instances,
            *(self._volume(one) for one in self._ours("describe_volumes", "Volumes")),
            *(self._address(one) for one in self._ours("describe_addresses", "Addresses")),
            *(self._interface(one) for one in self._ours("describe_network_interfaces", "NetworkInterfaces")),
            *(self._template(one) for one in self._ours("describe_launch_templates", "LaunchTemplates")),
            *(self._group(one) for one in self._ours("describe_security_groups", "SecurityGroups")),
            *(self._key(one) for one in self._ours("describe_key_pairs", "KeyPairs")),
        ]

    def _ours(self, operation: str, field: str) -> Iterator[dict[str, Any]]:
        for one in self._all(operation, field):
            if self._is_ours(one) and not _over(one):
                yield one

    def _all(self, operation: str, field: str) -> Iterator[dict[str, Any]]:
        if self._ec2.can_paginate(operation):
            pages: Any = self._ec2.get_paginator(operation).paginate(PaginationConfig={"PageSize": 200})
        else:
            pages = [getattr(self._ec2, operation)()]
        for page in pages:
            for one in page[field]:
                yield from one["Instances"] if field == "Reservations" else (one,)

    def _is_ours(self, one: dict[str, Any]) -> bool:
        tags = _tags(one)
        if TAG in tags or RAY_TAG in tags:
            return True
        holders = [one.get("InstanceId"), *(held.get("InstanceId") for held in one.get("Attachments", []))]
        if any(holder in self._owner for holder in holders):
            return True
        names = (
            one.get("GroupName"),
            one.get("KeyName") if "KeyPairId" in one else None,
            one.get("LaunchTemplateName"),
        )
        return any(name.startswith(PREFIXES) for name in names if name)

    def _instance(self, one: dict[str, Any]) -> Leftover:
        self._owner.setdefault(one["InstanceId"], _cluster(one))
        for disk in one.get("BlockDeviceMappings", []):
            if disk["Ebs"].get("DeleteOnTermination"):
                self._goes_with[disk["Ebs"]["VolumeId"]] = one["InstanceId"]
        state = one["State"]["Name"]
        costs = (
            "its disks" if state in ("stopped", "stopping") else f"{one['InstanceType']} by the second, and its disks"
        )
        return self._leftover("instance", one, one["InstanceId"], "LaunchTime", state=state, costs=costs)

    def _spot(self, one: dict[str, Any]) -> Leftover:
        if "InstanceId" in one:  # which bears no tag of its own
            self._owner[one["InstanceId"]] = _cluster(one)
        costs = "new instances, as long as it is open"
        return self._leftover(
            "spot request", one, one["SpotInstanceRequestId"], "CreateTime", state=one["State"], costs=costs
        )

    def _volume(self, one: dict[str, Any]) -> Leftover:
        holder = self._goes_with.get(one["VolumeId"], "")
        state = f"goes with {holder}" if holder else one["State"]
        costs = f"{one['Size']} GiB by the month"
        return self._leftover("volume", one, one["VolumeId"], "CreateTime", state=state, costs=costs, holder=holder)

    def _address(self, one: dict[str, Any]) -> Leftover:
        holder = one.get("AssociationId", "")
        state = one["PublicIp"]
        return self._leftover(
            "elastic address", one, one["AllocationId"], "", state=state, costs="by the hour", holder=holder
        )

    def _interface(self, one: dict[str, Any]) -> Leftover:
        return self._leftover("network interface", one, one["NetworkInterfaceId"], "", state=one["Status"])

    def _template(self, one: dict[str, Any]) -> Leftover:
        name = one["LaunchTemplateName"]
        return self._leftover("launch template", one, one["LaunchTemplateId"], "CreateTime", name=name)

    def _group(self, one: dict[str, Any]) -> Leftover:
        open_to = [r["CidrIp"] for rule in one["IpPermissions"] for r in rule.get("IpRanges", [])]
        state = "open to the world" if "0.0.0.0/0" in open_to else ""
        found = self._leftover("security group", one, one["GroupId"], "", name=one["GroupName"], state=state)
        return msgspec.structs.replace(found, commands=remove_group(found.id, self._region, self._named_by(found.id)))

    def _named_by(self, group: str) -> list[tuple[str, str]]:
        if self._rules is None:
            self._rules = list(self._all("describe_security_group_rules", "SecurityGroupRules"))
        return [
            (rule["GroupId"], rule["SecurityGroupRuleId"])
            for rule in self._rules
            if rule.get("ReferencedGroupInfo", {}).get("GroupId") == group != rule["GroupId"] and not rule["IsEgress"]
        ]

    def _key(self, one: dict[str, Any]) -> Leftover:
        return self._leftover("key pair", one, one["KeyName"], "CreateTime", name=one["KeyName"])

    def _leftover(self, kind: Kind, one: dict[str, Any], id: str, born: str, holder: str = "", **said: str) -> Leftover:
        holders = [one.get("InstanceId", ""), *(held.get("InstanceId", "") for held in one.get("Attachments", []))]
        owner = next((self._owner[each] for each in holders if each in self._owner), "")
        name = said.pop("name", "") or _tags(one).get("Name", "")
        return Leftover(
            kind=kind,
            id=id,
            region=self._region,
            commands=remove_commands(kind, id, self._region, holder),
            cluster=_cluster(one) or owner,
            name=name,
            age_s=_age_s(one.get(born), self._now),
            **said,
        )


def _profiles(iam: Any, now: datetime.datetime) -> Iterator[Leftover]:
    for page in iam.get_paginator("list_instance_profiles").paginate():
        for one in page["InstanceProfiles"]:
            if one["InstanceProfileName"].startswith(PREFIXES):
                name = one["InstanceProfileName"]
                roles = [role["RoleName"] for role in one["Roles"]]
                commands = remove_profile(name, roles)
                tags = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
                yield _account("instance profile", name, commands, _tags(tags), _age_s(one["CreateDate"], now))


def _roles(iam: Any, now: datetime.datetime) -> Iterator[Leftover]:
    for page in iam.get_paginator("list_roles").paginate():
        for one in page["Roles"]:
            if one["RoleName"].startswith(PREFIXES):
                name = one["RoleName"]
                inline = _pages(iam, "list_role_policies", "PolicyNames", lambda policy: str(policy), name)
                attached = _pages(
                    iam, "list_attached_role_policies", "AttachedPolicies", lambda p: str(p["PolicyArn"]), name
                )
                tags = iam.get_role(RoleName=name)["Role"]
                commands = remove_role(name, inline, attached)
                yield _account("role", name, commands, _tags(tags), _age_s(one["CreateDate"], now))


def _pages(iam: Any, operation: str, field: str, pick: Callable[[Any], str], role: str) -> list[str]:
    pages = iam.get_paginator(operation).paginate(RoleName=role)
    return [pick(one) for page in pages for one in page[field]]


def _account(kind: Kind, name: str, commands: tuple[str, ...], tags: dict[str, str], age_s: float | None) -> Leftover:
    return Leftover(
        kind=kind, id=name, region="global", commands=commands, cluster=tags.get(TAG, ""), name=name, age_s=age_s
    )


def _tags(one: dict[str, Any]) -> dict[str, str]:
    pairs = one.get("Tags") or one.get("TagSet") or []
    return {pair["Key"]: pair["Value"] for pair in pairs}


def _cluster(one: dict[str, Any]) -> str:
    tags = _tags(one)
    return tags.get(TAG) or tags.get(RAY_TAG, "")


def _over(one: dict[str, Any]) -> bool:
    """Whether it is only a memory: ended instances and spot requests stay in AWS's lists for a while."""
    state = one.get("State")
    if isinstance(state, dict):
        return state["Name"] in ENDED
    if "SpotInstanceRequestId" in one and "State" in one:
        return state not in ("open", "active")
    return "NetworkInterfaceId" in one and one.get("Status") == "in-use"  # it goes with what uses it


def _age_s(born: datetime.datetime | None, now: datetime.datetime) -> float | None:
    return None if born is None else max(0.0, (now - born).total_seconds())


# How each goes away: the `aws` commands. A person runs them, knowing what goes: we never delete.

ONE_COMMAND = {  # kind → operation and option of what goes with one command
    "spot request": "cancel-spot-instance-requests --spot-instance-request-ids",
    "launch template": "delete-launch-template --launch-template-id",
    "network interface": "delete-network-interface --network-interface-id",
    "key pair": "delete-key-pair --key-name",
}


def remove_commands(kind: str, id: str, region: str, holder: str = "") -> tuple[str, ...]:
    """How one thing of a region is removed. `holder` is what keeps it: the instance whose disk it is, or an
    address's association."""

    def ec2(words: str, *values: str) -> str:
        return f"aws ec2 {words} {shlex.join(values)} --region {region}"

    if kind in ONE_COMMAND:
        return (ec2(ONE_COMMAND[kind], id),)
    if kind == "instance":
        return _terminate(id, region)
    if kind == "volume":
        return _terminate(holder, region) if holder else (ec2("delete-volume --volume-id", id),)
    if kind == "elastic address":
        freed = (ec2("disassociate-address --association-id", holder),) if holder else ()
        return (*freed, ec2("release-address --allocation-id", id))
    return (ec2("delete-security-group --group-id", id),)


def remove_group(id: str, region: str, named_by: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """How a security group is removed: not before no rule (group and id) of another one names it."""
    freed = [
        f"aws ec2 revoke-security-group-ingress --group-id {other} --security-group-rule-ids {rule} --region {region}"
        for other, rule in named_by
    ]
    return (*freed, *remove_commands("security group", id, region))


def _terminate(instance: str, region: str) -> tuple[str, ...]:
    at = f"--instance-ids {instance} --region {region}"
    return f"aws ec2 terminate-instances {at}", f"aws ec2 wait instance-terminated {at}"


def remove_profile(name: str, roles: Sequence[str]) -> tuple[str, ...]:
    """How an instance profile is removed."""
    at = f"--instance-profile-name {shlex.quote(name)}"
    freed = [f"aws iam remove-role-from-instance-profile {at} --role-name {shlex.quote(role)}" for role in roles]
    return (*freed, f"aws iam delete-instance-profile {at}")


def remove_role(name: str, inline: Sequence[str], attached: Sequence[str]) -> tuple[str, ...]:
    """How a role is removed, once no instance profile has it."""
    at = f"--role-name {shlex.quote(name)}"
    return (
        *(f"aws iam delete-role-policy {at} --policy-name {shlex.quote(policy)}" for policy in inline),
        *(f"aws iam detach-role-policy {at} --policy-arn {shlex.quote(policy)}" for policy in attached),
        f"aws iam delete-role {at}",
    )


PHASES = (" cancel-spot-", " terminate-instances ", " wait ", " revoke-")


def removal_script(commands: Iterable[str]) -> list[str]:
    """Each command once, in an order that works: what would start again first, every end requested before any is
    awaited, and no security group deleted while a rule of another names it."""
    wanted = list(dict.fromkeys(commands))
    phases = [[command for command in wanted if mark in command] for mark in PHASES]
    early = {command for phase in phases for command in phase}
    return [
        *(command for phase in phases for command in phase),
        *(command for command in wanted if command not in early),
    ]
