"""What the nodes stand on: a key pair, a security group that is closed, and the head's role. Made once, tagged.

Ray would make them too, but with SSH open to the whole world and with all of EC2 and S3 for the head; what is there
already it takes as it is, so ours come first.

The policies below are all that the head and the person who runs the cluster may do. Everything that changes something
is bound to the cluster's tag or to names that carry the cluster's; AWS offers no such condition for what only looks,
which is why those alone have `*`.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparring.errors import Conflict
from sparring.hosts.cluster import RAY_PREFIX, RAY_TAG, TAG
from sparring.hosts.cluster.launcher import ClusterPlan

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
DESCRIBE = (
    *("Addresses", "Images", "Instances", "InstanceTypes", "KeyPairs", "LaunchTemplates", "NetworkInterfaces"),
    *("Regions", "SecurityGroupRules", "SecurityGroups", "SpotInstanceRequests", "Subnets", "Volumes", "Vpcs"),
)
LOOK_AT_ROLES = (
    *("GetRole", "GetInstanceProfile", "ListRoles", "ListInstanceProfiles"),
    *("ListRolePolicies", "ListAttachedRolePolicies"),
)
ROLE_VERBS = (
    *("CreateRole", "TagRole", "DeleteRole", "PutRolePolicy", "GetRolePolicy", "DeleteRolePolicy", "DetachRolePolicy"),
)
REMOVALS = {  # of what `spar cluster leftovers` lists
    "TerminateInstances": "instance/*",
    "DeleteVolume": "volume/*",
    "DeleteNetworkInterface": "network-interface/*",
    "ReleaseAddress": "elastic-ip/*",
    "DisassociateAddress": "elastic-ip/*",
    "DeleteLaunchTemplate": "launch-template/*",
    "CancelSpotInstanceRequests": "spot-instances-request/*",
    "RevokeSecurityGroupIngress": "security-group/*",
    "DeleteSecurityGroup": "security-group/*",
    "DeleteKeyPair": "key-pair/*",
}
ROLE_REMOVALS = ("DeleteRole", "DeleteRolePolicy", "DetachRolePolicy")
PROFILE_REMOVALS = ("DeleteInstanceProfile", "RemoveRoleFromInstanceProfile")
PROFILE_VERBS = (
    *("CreateInstanceProfile", "TagInstanceProfile", "DeleteInstanceProfile"),
    *("AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile"),
)


def prepare(plan: ClusterPlan, policy: dict[str, Any], keys: Path) -> list[str]:
    """Make what is missing and close what is open; sentences about what was done. May be repeated."""
    from sparring.hosts.cluster.aws import Ec2, Iam, client  # boto3: the policies below need none

    with client(Ec2(region=plan.region)) as ec2:
        said = [*_key_pair(ec2, plan, keys), *_group(ec2, plan)]
    with client(Iam(region=plan.region)) as iam:
        return [*said, *_role(iam, plan, policy)]


def _tags(plan: ClusterPlan) -> list[dict[str, str]]:
    return [{"Key": TAG, "Value": plan.name}]


def _key_pair(ec2: Any, plan: ClusterPlan, keys: Path) -> list[str]:
    file = keys / f"{plan.group}.pem"
    there = ec2.describe_key_pairs(Filters=[{"Name": "key-name", "Values": [plan.group]}])["KeyPairs"]
    if there and file.exists():
        return []
    if there or file.exists():
        gone, kept = (file, "at AWS") if there else ("the key pair at AWS", str(file))
        remove = f"aws ec2 delete-key-pair --region {plan.region} --key-name {plan.group}" if there else f"rm {file}"
        raise Conflict(f"{plan.group} is still {kept}, but {gone} is not there", where="key pair", do=f"Run {remove}")
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    specification = [{"ResourceType": "key-pair", "Tags": _tags(plan)}]
    made = ec2.create_key_pair(KeyName=plan.group, KeyType="ed25519", TagSpecifications=specification)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(made["KeyMaterial"])
    return [f"made the key pair {plan.group}, its private half in {file}"]


def _group(ec2: Any, plan: ClusterPlan) -> list[str]:
    vpc = _network_of(ec2, plan)
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": [plan.group]}]
    there = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    said = []
    if there:
        group = there[0]["GroupId"]
    else:
        group = ec2.create_security_group(
            GroupName=plan.group,
            Description="Sparring cluster: open inside, SSH from one address",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": _tags(plan)}],
        )["GroupId"]
        said.append(f"made the security group {group}")
    wanted = _rules(group, plan.ssh_from)
    found = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])
    inbound = [rule for rule in found["SecurityGroupRules"] if not rule["IsEgress"]]
    stray = [rule["SecurityGroupRuleId"] for rule in inbound if _shape(rule) not in wanted]
    if stray:
        ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=stray)
        said.append(f"closed {len(stray)} rules of {group} that were open to others")
    missing = [rule for shape, rule in wanted.items() if shape not in {_shape(rule) for rule in inbound}]
    if missing:
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=missing)
        said.append(f"{group} is open to itself, and to SSH from {plan.ssh_from}")
    return said


def _rules(group: str, ssh_from: str) -> dict[tuple[str, str], dict[str, Any]]:
    ssh: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    source = {"Ipv6Ranges": [{"CidrIpv6": ssh_from}]} if ":" in ssh_from else {"IpRanges": [{"CidrIp": ssh_from}]}
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    return {("-1", group): inside, ("tcp", ssh_from): ssh | source}


def _shape(rule: dict[str, Any]) -> tuple[str, str]:
    source = rule.get("CidrIpv4") or rule.get("CidrIpv6") or rule.get("ReferencedGroupInfo", {}).get("GroupId", "")
    protocol = str(rule["IpProtocol"])
    if protocol == "tcp" and (rule["FromPort"], rule["ToPort"]) != (22, 22):
        protocol = f"tcp {rule['FromPort']}-{rule['ToPort']}"
    return protocol, source


def _network_of(ec2: Any, plan: ClusterPlan) -> str:
    """The network of the plan's subnets, or the one that Ray will choose: that of the last availability zone's."""
    filters = [{"Name": "subnet-id", "Values": list(plan.subnets)}] if plan.subnets else []
    found = [
        subnet for page in ec2.get_paginator("describe_subnets").paginate(Filters=filters) for subnet in page["Subnets"]
    ]
    usable = [one for one in found if one["State"] == "available" and (plan.private or one["MapPublicIpOnLaunch"])]
    usable.sort(key=lambda subnet: str(subnet["AvailabilityZone"]), reverse=True)
    if not usable:
        do = "Run `aws ec2 create-default-vpc`, or name subnets with --subnet, with --private where they are inner ones"
        raise Conflict("there is no subnet that a node could be placed in", where=f"AWS {plan.region}", do=do)
    return str(usable[0]["VpcId"])


def _role(iam: Any, plan: ClusterPlan, policy: dict[str, Any]) -> list[str]:
    said = []
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName=plan.role, AssumeRolePolicyDocument=json.dumps(TRUST), Tags=_tags(plan))
        said.append(f"made the role {plan.role}")
    iam.put_role_policy(RoleName=plan.role, PolicyName="sparring-head", PolicyDocument=json.dumps(policy))
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_instance_profile(InstanceProfileName=plan.role, Tags=_tags(plan))
        said.append(f"made the instance profile {plan.role}")
    profile = iam.get_instance_profile(InstanceProfileName=plan.role)["InstanceProfile"]
    if not profile["Roles"]:
        iam.add_role_to_instance_profile(InstanceProfileName=plan.role, RoleName=plan.role)
        iam.get_waiter("instance_profile_exists").wait(InstanceProfileName=plan.role)
    return said


def head_policy(plan: ClusterPlan) -> dict[str, Any]:
    """Launch, tag and terminate this cluster's workers; nothing else, no other service."""
    look = ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeImages", "ec2:DescribeSubnets"]
    return _policy([_allow("Look", look, "*"), *_launch_and_end(plan)])


def user_policy(plan: ClusterPlan) -> dict[str, Any]:
    """What `spar cluster up`, `submit`, `down` and `leftovers` and the commands that those print need."""
    role = f"arn:{_partition(plan)}:iam::*:role/{plan.role}"
    profile = f"arn:{_partition(plan)}:iam::*:instance-profile/{plan.role}"
    look = [*(f"ec2:Describe{what}" for what in DESCRIBE), *(f"iam:{verb}" for verb in LOOK_AT_ROLES)]
    to_ec2, for_spot = {"iam:PassedToService": "ec2.amazonaws.com"}, {"iam:AWSServiceName": "spot.amazonaws.com"}
    return _policy(
        [
            _allow("Look", look, "*"),
            *_launch_and_end(plan),
            *_ground(plan),
            *_remove_leftovers(_partition(plan)),
            _allow("TheHeadsRole", [f"iam:{verb}" for verb in ROLE_VERBS], role),
            _allow("TheHeadsProfile", [f"iam:{verb}" for verb in PROFILE_VERBS], [role, profile]),
            _allow("HandTheRoleToTheHead", ["iam:PassRole"], role, to_ec2),
            _allow("FirstSpotInstanceOfAnAccount", ["iam:CreateServiceLinkedRole"], "*", for_spot),
        ]
    )


def _launch_and_end(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Only what carries the tag from birth, in our security group, with our key."""
    run, tag = ["ec2:RunInstances"], ["ec2:CreateTags"]
    kinds = ("instance/*", "volume/*", "network-interface/*", "spot-instances-request/*")
    made = [_arn(plan, kind) for kind in kinds]
    image = f"arn:{_partition(plan)}:ec2:{plan.region}::image/*"
    used = [_arn(plan, "subnet/*"), _arn(plan, f"key-pair/{plan.group}*"), image]
    images = f"arn:{_partition(plan)}:ssm:{plan.region}::parameter/aws/service/canonical/*"
    return [
        _allow("LaunchOnlyWithTheTag", run, made, _born_tagged(plan)),
        _allow("InOurGroup", run, _arn(plan, "security-group/*"), _tagged(plan)),
        _allow("On", run, used),
        _allow("NewestImage", ["ssm:GetParameters"], images),
        _allow("TagWhatIsBorn", tag, made, {"ec2:CreateAction": "RunInstances"}),
        _allow("SayTheStateOfANode", tag, _arn(plan, "instance/*"), _tagged(plan)),
        _allow("EndOnlyOurs", ["ec2:TerminateInstances"], _arn(plan, "instance/*"), _tagged(plan)),
    ]


def _ground(plan: ClusterPlan) -> list[dict[str, Any]]:
    group, key = _arn(plan, "security-group/*"), _arn(plan, f"key-pair/{plan.group}*")
    birth = {"ec2:CreateAction": ["CreateSecurityGroup", "CreateKeyPair"]}
    group_verbs = ("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress", "DeleteSecurityGroup")
    return [
        _allow("MakeAGroup", ["ec2:CreateSecurityGroup"], group, _born_tagged(plan)),
        _allow("InANetwork", ["ec2:CreateSecurityGroup"], _arn(plan, "vpc/*")),
        _allow("OpenAndCloseOurGroup", [f"ec2:{verb}" for verb in group_verbs], group, _tagged(plan)),
        _allow("TheKeyPair", ["ec2:CreateKeyPair", "ec2:DeleteKeyPair"], key),
        _allow("TagTheGround", ["ec2:CreateTags"], [group, key], birth),
    ]


def _remove_leftovers(partition: str) -> list[dict[str, Any]]:
    """What any cluster left, in every region: ours by its tag, a bare Ray's by its tag or name."""
    remove = [f"ec2:{verb}" for verb in REMOVALS]
    things = [f"arn:{partition}:ec2:*:*:{kind}" for kind in dict.fromkeys(REMOVALS.values())]
    iam = [f"iam:{verb}" for verb in (*ROLE_REMOVALS, *PROFILE_REMOVALS)]
    rays = [f"arn:{partition}:iam::*:{kind}/{RAY_PREFIX}*" for kind in ("role", "instance-profile")]
    ours = [f"arn:{partition}:iam::*:{kind}/sparring-*" for kind in ("role", "instance-profile")]
    return [
        _allow("RemoveLeftovers", remove, things) | _carrying(f"ec2:ResourceTag/{TAG}"),
        _allow("RemoveWhatRayLeft", remove, things) | _carrying(f"ec2:ResourceTag/{RAY_TAG}"),
        _allow("RemoveRaysKeyPairs", ["ec2:DeleteKeyPair"], f"arn:{partition}:ec2:*:*:key-pair/{RAY_PREFIX}*"),
        _allow("RemoveRoles", iam, ours) | _carrying(f"iam:ResourceTag/{TAG}"),
        _allow("RemoveRaysRoles", iam, rays),
    ]


def _carrying(tag: str) -> dict[str, Any]:
    return {"Condition": {"Null": {tag: "false"}}}


def _allow(
    sid: str, actions: list[str], resources: str | list[str], equals: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A statement, under the condition that these keys have these values."""
    condition = {"Condition": {"StringEquals": equals}} if equals else {}
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources, **condition}


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _tagged(plan: ClusterPlan) -> dict[str, str]:
    return {f"ec2:ResourceTag/{TAG}": plan.name}


def _born_tagged(plan: ClusterPlan) -> dict[str, str]:
    return {f"aws:RequestTag/{TAG}": plan.name}


def _arn(plan: ClusterPlan, resource: str) -> str:
    return f"arn:{_partition(plan)}:ec2:{plan.region}:*:{resource}"


def _partition(plan: ClusterPlan) -> str:
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(plan.region.rpartition("-")[0].rpartition("-")[0], "aws")
