"""What the nodes stand on: a key pair, a security group that is closed, and the head's role. Made once, tagged.

Ray would make them too, but with SSH open to the whole world and with all of EC2 and S3 for the head; what is there
already it takes as it is, so ours come first.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.errors import Conflict
from sparring.hosts.cluster import TAG
from sparring.hosts.cluster.aws import client, refusals, session
from sparring.hosts.cluster.plan import ClusterPlan
from sparring.hosts.cluster.policy import TRUST


def prepare(plan: ClusterPlan, ssh_from: str, policy: dict[str, Any], keys: Path) -> list[str]:
    """Make what is missing and close what is open; sentences about what was done. May be repeated."""
    opened = session()
    ec2, iam = client(opened, "ec2", plan.region), client(opened, "iam", plan.region)
    with refusals(plan.region):
        return [*_key_pair(ec2, plan, keys), *_group(ec2, plan, ssh_from), *_role(iam, plan, policy)]


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


def _group(ec2: Any, plan: ClusterPlan, ssh_from: str) -> list[str]:
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
    wanted = _rules(group, ssh_from)
    found = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])
    inbound = [rule for rule in found["SecurityGroupRules"] if not rule["IsEgress"]]
    stray = [rule["SecurityGroupRuleId"] for rule in inbound if _shape(rule) not in wanted]
    if stray:
        ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=stray)
        said.append(f"closed {len(stray)} rules of {group} that were open to others")
    missing = [rule for shape, rule in wanted.items() if shape not in {_shape(rule) for rule in inbound}]
    if missing:
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=missing)
        said.append(f"{group} is open to itself, and to SSH from {ssh_from}")
    return said


def _rules(group: str, ssh_from: str) -> dict[tuple[str, str], dict[str, Any]]:
    ssh: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    if ":" in ssh_from:
        ssh["Ipv6Ranges"] = [{"CidrIpv6": ssh_from}]
    else:
        ssh["IpRanges"] = [{"CidrIp": ssh_from}]
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    return {("-1", group): inside, ("tcp", ssh_from): ssh}


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
    if not _there(iam, lambda: iam.get_role(RoleName=plan.role)):
        iam.create_role(RoleName=plan.role, AssumeRolePolicyDocument=json.dumps(TRUST), Tags=_tags(plan))
        said.append(f"made the role {plan.role}")
    iam.put_role_policy(RoleName=plan.role, PolicyName="sparring-head", PolicyDocument=json.dumps(policy))
    if not _there(iam, lambda: iam.get_instance_profile(InstanceProfileName=plan.role)):
        iam.create_instance_profile(InstanceProfileName=plan.role, Tags=_tags(plan))
        said.append(f"made the instance profile {plan.role}")
    profile = iam.get_instance_profile(InstanceProfileName=plan.role)["InstanceProfile"]
    if not profile["Roles"]:
        iam.add_role_to_instance_profile(InstanceProfileName=plan.role, RoleName=plan.role)
        iam.get_waiter("instance_profile_exists").wait(InstanceProfileName=plan.role)
    return said


def _there(iam: Any, ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except iam.exceptions.NoSuchEntityException:
        return False
    return True
