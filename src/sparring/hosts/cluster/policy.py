"""What the head and the person who runs the cluster may do, in full and no more.

Everything that changes something is bound to the cluster's tag or to names that carry the cluster's; AWS offers no such
condition for what only looks, which is why those alone have `*`.
"""

from typing import Any

from sparring.hosts.cluster import TAG
from sparring.hosts.cluster.plan import ClusterPlan

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
PROFILE_VERBS = (
    *("CreateInstanceProfile", "TagInstanceProfile", "DeleteInstanceProfile"),
    *("AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile"),
)


def head_policy(plan: ClusterPlan) -> dict[str, Any]:
    """Launch, tag and terminate this cluster's workers; nothing else, no other service."""
    look = ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeImages", "ec2:DescribeSubnets"]
    return _policy([_allow("Look", look, "*"), *_launching(plan), _ending(plan)])


def user_policy(plan: ClusterPlan) -> dict[str, Any]:
    """What `spar cluster up`, `submit`, `down` and `leftovers` and the commands that those print need."""
    role = f"arn:{_partition(plan)}:iam::*:role/{plan.role}"
    profile = f"arn:{_partition(plan)}:iam::*:instance-profile/{plan.role}"
    passing = _allow("HandTheRoleToTheHead", ["iam:PassRole"], role)
    passing["Condition"] = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    spot = _allow("FirstSpotInstanceOfAnAccount", ["iam:CreateServiceLinkedRole"], "*")
    spot["Condition"] = {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}}
    looks = [f"iam:{verb}" for verb in LOOK_AT_ROLES]
    return _policy(
        [
            _allow("Look", [*(f"ec2:Describe{what}" for what in DESCRIBE), *looks], "*"),
            *_launching(plan),
            _ending(plan),
            *_ground(plan),
            _allow("TheHeadsRole", [f"iam:{verb}" for verb in ROLE_VERBS], role),
            _allow("TheHeadsProfile", [f"iam:{verb}" for verb in PROFILE_VERBS], [role, profile]),
            passing,
            spot,
        ]
    )


def _launching(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Only what carries the tag from birth, in our security group, with our key."""
    made = ("instance/*", "volume/*", "network-interface/*", "spot-instances-request/*")
    birth = _allow("LaunchOnlyWithTheTag", ["ec2:RunInstances"], [_arn(plan, kind) for kind in made])
    birth["Condition"] = {"StringEquals": {f"aws:RequestTag/{TAG}": plan.name}}
    ours = _allow("InOurGroup", ["ec2:RunInstances"], _arn(plan, "security-group/*"))
    ours["Condition"] = _tagged(plan)
    used = [
        _arn(plan, "subnet/*"),
        _arn(plan, f"key-pair/{plan.group}*"),
        f"arn:{_partition(plan)}:ec2:{plan.region}::image/*",
    ]
    images = f"arn:{_partition(plan)}:ssm:{plan.region}::parameter/aws/service/canonical/*"
    naming = _allow("TagWhatIsBorn", ["ec2:CreateTags"], [_arn(plan, kind) for kind in made])
    naming["Condition"] = {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
    states = _allow("SayTheStateOfANode", ["ec2:CreateTags"], _arn(plan, "instance/*"))
    states["Condition"] = _tagged(plan)
    return [
        birth,
        ours,
        _allow("On", ["ec2:RunInstances"], used),
        _allow("NewestImage", ["ssm:GetParameters"], images),
        naming,
        states,
    ]


def _ending(plan: ClusterPlan) -> dict[str, Any]:
    ending = _allow("EndOnlyOurs", ["ec2:TerminateInstances"], _arn(plan, "instance/*"))
    return ending | {"Condition": _tagged(plan)}


def _ground(plan: ClusterPlan) -> list[dict[str, Any]]:
    group, key = _arn(plan, "security-group/*"), _arn(plan, f"key-pair/{plan.group}*")
    born = {"StringEquals": {f"aws:RequestTag/{TAG}": plan.name}}
    naming = {"StringEquals": {"ec2:CreateAction": ["CreateSecurityGroup", "CreateKeyPair"]}}
    group_verbs = ("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress", "DeleteSecurityGroup")
    removals = {
        "DeleteVolume": "volume/*",
        "DeleteNetworkInterface": "network-interface/*",
        "ReleaseAddress": "elastic-ip/*",
        "DisassociateAddress": "elastic-ip/*",
        "DeleteLaunchTemplate": "launch-template/*",
        "CancelSpotInstanceRequests": "spot-instances-request/*",
    }
    return [
        _allow("MakeAGroup", ["ec2:CreateSecurityGroup"], group) | {"Condition": born},
        _allow("InANetwork", ["ec2:CreateSecurityGroup"], _arn(plan, "vpc/*")),
        _allow("OpenAndCloseOurGroup", [f"ec2:{verb}" for verb in group_verbs], group) | {"Condition": _tagged(plan)},
        _allow("TheKeyPair", ["ec2:CreateKeyPair", "ec2:DeleteKeyPair"], key),
        _allow("TagTheGround", ["ec2:CreateTags"], [group, key]) | {"Condition": naming},
        _allow(
            "RemoveLeftovers", [f"ec2:{verb}" for verb in removals], [_arn(plan, kind) for kind in removals.values()]
        )
        | {"Condition": _tagged(plan)},
    ]


def _allow(sid: str, actions: list[str], resources: str | list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _tagged(plan: ClusterPlan) -> dict[str, Any]:
    return {"StringEquals": {f"ec2:ResourceTag/{TAG}": plan.name}}


def _arn(plan: ClusterPlan, resource: str) -> str:
    return f"arn:{_partition(plan)}:ec2:{plan.region}:*:{resource}"


def _partition(plan: ClusterPlan) -> str:
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(plan.region.rpartition("-")[0].rpartition("-")[0], "aws")
