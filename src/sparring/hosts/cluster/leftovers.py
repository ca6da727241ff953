"""What clusters left behind: everything of ours or of Ray's that is still there, in the order in which it can go.

Ours carries the tag of this package or of Ray, or, where Ray sets none, a name that Ray gives.
Prices are PRICES_FROM; where none is known here, none is shown.
"""

import datetime
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from sparring.hosts.cluster import RAY_PREFIX, RAY_TAG, TAG
from sparring.hosts.cluster.aws import Ec2, Iam, client

NAMES = ("sparring-", RAY_PREFIX)  # of roles and instance profiles, whose lists say no tags
ENDED = {"terminated", "shutting-down"}
PRICES_FROM = "AWS's price list for us-east-1 in US dollars, on demand, as of 2025"
HOURS = 730  # of a month
GIB_MONTH, ADDRESS_HOUR = 0.08, 0.005  # gp3; a public IPv4 address
LARGE_HOUR = {  # of a family's size "large", of which the others are multiples
    **{"m5": 0.096, "m6i": 0.096, "m7i": 0.1008, "m6g": 0.077, "m7g": 0.0816, "t3": 0.0832, "t4g": 0.0672},
    **{"c5": 0.085, "c6i": 0.085, "c7i": 0.08925, "c6g": 0.068, "c7g": 0.0725, "r5": 0.126, "r6i": 0.126},
}
LARGES = {"micro": 0.125, "small": 0.25, "medium": 0.5, "large": 1.0, "xlarge": 2.0}

IN_REGION = (  # kind, operation, and its fields: of all of them, of one's id, of its birth
    ("spot request", "describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId", "CreateTime"),
    ("instance", "describe_instances", "Reservations", "InstanceId", "LaunchTime"),
    ("volume", "describe_volumes", "Volumes", "VolumeId", "CreateTime"),
    ("elastic address", "describe_addresses", "Addresses", "AllocationId", ""),
    ("network interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId", ""),
    ("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", "CreateTime"),
    ("security group", "describe_security_groups", "SecurityGroups", "GroupId", ""),
    ("key pair", "describe_key_pairs", "KeyPairs", "KeyName", "CreateTime"),
)
KINDS = [*(kind for kind, *_ in IN_REGION), "instance profile", "role"]  # in the order in which they can go


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is still there."""

    kind: str  # one of KINDS
    id: str
    region: str  # "global" for what is an account's
    commands: tuple[str, ...]  # that remove it, once those of what stands above it have run
    cluster: str = ""  # "" where nothing says which
    name: str = ""
    state: str = ""
    costs: str = ""  # for what it costs money at rest; "" is nothing
    dollars_per_month: float | None = 0.0  # by PRICES_FROM; None where that is not known here
    age_s: float | None = None  # None where AWS does not say


def find(regions: Sequence[str], now: datetime.datetime, cluster: str = "") -> list[Leftover]:
    """All that is left in these regions and in the account; of one cluster (and of unknown ones) where it is named."""
    found: list[Leftover] = []
    for region in regions:
        with client(Ec2(region=region)) as ec2:
            found += _Region(ec2, region, now).everything()
    with client(Iam(region=regions[0])) as iam:
        found += _of_account(iam, now)
    mine = [one for one in found if not cluster or one.cluster in ("", cluster)]
    return sorted(mine, key=lambda one: KINDS.index(one.kind))


def all_regions(region: str) -> list[str]:
    """Every region that this account can use."""
    with client(Ec2(region=region)) as ec2:
        return sorted(str(one["RegionName"]) for one in ec2.describe_regions()["Regions"])


def _listed(aws: Any, operation: str, field: str, **named: Any) -> Iterator[Any]:
    """All that an operation lists."""
    if aws.can_paginate(operation):
        pages = aws.get_paginator(operation).paginate(PaginationConfig={"PageSize": 100}, **named)
    else:
        pages = [getattr(aws, operation)(**named)]
    for page in pages:
        for one in page[field]:
            yield from one["Instances"] if field == "Reservations" else (one,)


class _Region:
    """One region's leftovers. Whose an untagged volume or address is shows the instance that holds it."""

    def __init__(self, ec2: Any, region: str, now: datetime.datetime) -> None:
        self._ec2, self._region, self._now = ec2, region, now
        self._owner: dict[str, str] = {}  # instance → cluster
        self._goes_with: dict[str, str] = {}  # volume → the instance whose end is its own

    def everything(self) -> Iterator[Leftover]:
        for kind, operation, field, id, born in IN_REGION:
            for one in _listed(self._ec2, operation, field):
                if self._is_ours(one) and not _over(one):
                    if kind in ("spot request", "instance") and "InstanceId" in one:  # a spot instance bears no tag
                        self._owner.setdefault(one["InstanceId"], _cluster(one))
                    yield self._leftover(kind, one, one[id], one.get(born))

    def _is_ours(self, one: dict[str, Any]) -> bool:
        tags = _tags(one)
        names = (
            one.get("GroupName"),
            one.get("KeyName") if "KeyPairId" in one else None,
            one.get("LaunchTemplateName"),
        )
        return (
            TAG in tags
            or RAY_TAG in tags
            or any(holder in self._owner for holder in _holders(one))
            or any(name.startswith(RAY_PREFIX) for name in names if name)
        )

    def _leftover(self, kind: str, one: dict[str, Any], id: str, born: datetime.datetime | None) -> Leftover:
        state, costs, commands = self._state_costs_commands(kind, one, shlex.quote(id))
        owner = next((self._owner[each] for each in _holders(one) if each in self._owner), "")
        named = one.get("LaunchTemplateName") or one.get("GroupName") or (id if kind == "key pair" else "")
        return Leftover(
            kind=kind,
            id=id,
            region=self._region,
            commands=tuple(f"aws ec2 {command} --region {self._region}" for command in commands),
            cluster=_cluster(one) or owner,
            name=named or _tags(one).get("Name", ""),
            state=state,
            costs=costs,
            dollars_per_month=_dollars_per_month(kind, one) if costs else 0.0,
            age_s=_age_s(born, self._now),
        )

    def _state_costs_commands(self, kind: str, one: dict[str, Any], id: str) -> tuple[str, str, list[str]]:
        """How it is, what it costs at rest, and how it goes away: a person runs that, knowing what goes."""
        if kind == "spot request":
            command = f"cancel-spot-instance-requests --spot-instance-request-ids {id}"
            return one["State"], "new instances, as long as it is open", [command]
        if kind == "instance":
            disks = [disk["Ebs"] for disk in one.get("BlockDeviceMappings", [])]
            self._goes_with |= {disk["VolumeId"]: id for disk in disks if disk.get("DeleteOnTermination")}
            state = one["State"]["Name"]
            return state, "" if state in ("stopped", "stopping") else one["InstanceType"], _terminate(id)
        if kind == "volume":
            costs = f"{one['Size']} GiB"
            if holder := self._goes_with.get(one["VolumeId"]):
                return f"goes with {holder}", costs, _terminate(holder)
            return one["State"], costs, [f"delete-volume --volume-id {id}"]
        if kind == "elastic address":
            held = [one["AssociationId"]] if one.get("AssociationId") else []
            freed = [f"disassociate-address --association-id {association}" for association in held]
            return one["PublicIp"], "an address", [*freed, f"release-address --allocation-id {id}"]
        if kind == "network interface":
            return one["Status"], "", [f"delete-network-interface --network-interface-id {id}"]
        if kind == "launch template":
            return "", "", [f"delete-launch-template --launch-template-id {id}"]
        if kind == "key pair":
            return "", "", [f"delete-key-pair --key-name {id}"]
        open_to = [source["CidrIp"] for rule in one["IpPermissions"] for source in rule.get("IpRanges", [])]
        freed = [  # a group goes not before no rule of another one names it
            f"revoke-security-group-ingress --group-id {rule['GroupId']}"
            f" --security-group-rule-ids {rule['SecurityGroupRuleId']}"
            for rule in self._rules
            if rule.get("ReferencedGroupInfo", {}).get("GroupId") == id != rule["GroupId"] and not rule["IsEgress"]
        ]
        state = "open to the world" if "0.0.0.0/0" in open_to else ""
        return state, "", [*freed, f"delete-security-group --group-id {id}"]

    @cached_property
    def _rules(self) -> list[dict[str, Any]]:
        """Of all security groups, looked for once one of ours is met."""
        return list(_listed(self._ec2, "describe_security_group_rules", "SecurityGroupRules"))


def _dollars_per_month(kind: str, one: dict[str, Any]) -> float | None:
    if kind == "volume":
        return GIB_MONTH * int(one["Size"])
    if kind == "elastic address":
        return ADDRESS_HOUR * HOURS
    family, _, size = str(one.get("InstanceType", "")).partition(".")  # a spot instance costs less
    many = size.removesuffix("xlarge")
    larges = 2.0 * int(many) if many.isdigit() else LARGES.get(size)
    return None if larges is None or family not in LARGE_HOUR else LARGE_HOUR[family] * larges * HOURS


def _terminate(instance: str) -> list[str]:
    return [f"terminate-instances --instance-ids {instance}", f"wait instance-terminated --instance-ids {instance}"]


def _of_account(iam: Any, now: datetime.datetime) -> Iterator[Leftover]:
    for one in _listed(iam, "list_instance_profiles", "InstanceProfiles"):
        name = one["InstanceProfileName"]
        profile = name.startswith(NAMES) and iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        if profile and _is_a_clusters(name, profile):
            at = f"--instance-profile-name {shlex.quote(name)}"
            roles = [shlex.quote(role["RoleName"]) for role in one["Roles"]]
            commands = [f"remove-role-from-instance-profile {at} --role-name {role}" for role in roles]
            yield _account("instance profile", name, [*commands, f"delete-instance-profile {at}"], profile, now)
    for one in _listed(iam, "list_roles", "Roles"):
        name = one["RoleName"]
        role = name.startswith(NAMES) and iam.get_role(RoleName=name)["Role"]
        if role and _is_a_clusters(name, role):
            at = f"--role-name {shlex.quote(name)}"
            inline = _listed(iam, "list_role_policies", "PolicyNames", RoleName=name)
            attached = _listed(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=name)
            commands = [
                *(f"delete-role-policy {at} --policy-name {shlex.quote(policy)}" for policy in inline),
                *(f"detach-role-policy {at} --policy-arn {shlex.quote(policy['PolicyArn'])}" for policy in attached),
                f"delete-role {at}",
            ]
            yield _account("role", name, commands, role, now)


def _is_a_clusters(name: str, one: dict[str, Any]) -> bool:
    """The gateway's role may be named sparring-gateway: what is of a cluster of ours has the tag."""
    return name.startswith(RAY_PREFIX) or TAG in _tags(one)


def _account(kind: str, name: str, commands: list[str], one: dict[str, Any], now: datetime.datetime) -> Leftover:
    return Leftover(
        kind=kind,
        id=name,
        region="global",
        commands=tuple(f"aws iam {command}" for command in commands),
        cluster=_tags(one).get(TAG, ""),
        name=name,
        age_s=_age_s(one["CreateDate"], now),
    )


def _tags(one: dict[str, Any]) -> dict[str, str]:
    pairs = one.get("Tags") or one.get("TagSet") or []
    return {pair["Key"]: pair["Value"] for pair in pairs}


def _cluster(one: dict[str, Any]) -> str:
    tags = _tags(one)
    return tags.get(TAG) or tags.get(RAY_TAG, "")


def _holders(one: dict[str, Any]) -> list[str]:
    """The instances that have it."""
    return [held["InstanceId"] for held in (one, *one.get("Attachments", [])) if "InstanceId" in held]


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


PHASES = (" cancel-spot-", " terminate-instances ", " wait ", " revoke-")


def removal_script(commands: Iterable[str]) -> list[str]:
    """Each command once, in an order that works: what would start again first, every end requested before any is
    awaited, and no security group deleted while a rule of another names it."""

    def phase(command: str) -> int:
        return next((number for number, mark in enumerate(PHASES) if mark in command), len(PHASES))

    return sorted(dict.fromkeys(commands), key=phase)
