"""What clusters leave behind, against moto's EC2 and IAM: all of it is found, and its commands remove it."""

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto_cloud import EAST, NOW, WEST, kinds, left, obey

from sparring.cli import main
from sparring.errors import SparringError
from sparring.hosts.cluster import RAY_TAG, TAG, leftovers, prerequisites
from sparring.hosts.cluster.launcher import ClusterPlan
from sparring.hosts.cluster.leftovers import Leftover, find

pytestmark = pytest.mark.usefixtures("cloud")


def tags(kind: str, key: str = TAG, cluster: str = "main") -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [{"Key": key, "Value": cluster}]}]


IMAGE = "ami-12c6146b"  # one that moto has


def launch(ec2: Any, count: int = 1, key: str = TAG, cluster: str = "main", **more: Any) -> list[str]:
    made = ec2.run_instances(
        ImageId=IMAGE, InstanceType="m5.large", MinCount=count, MaxCount=count,
        TagSpecifications=tags("instance", key, cluster), **more,
    )  # fmt: skip
    return [one["InstanceId"] for one in made["Instances"]]


def make_role(name: str, cluster: str = "") -> None:
    mark = [{"Key": TAG, "Value": cluster}] if cluster else []
    iam = boto3.client("iam", region_name=WEST)
    look = [{"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}]
    trust = {"Version": "2012-10-17", "Statement": look}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust), Tags=mark)
    iam.put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=json.dumps(trust))
    made = iam.create_policy(PolicyName=f"{name}-extra", PolicyDocument=json.dumps(trust))
    iam.attach_role_policy(RoleName=name, PolicyArn=made["Policy"]["Arn"])
    iam.create_instance_profile(InstanceProfileName=name, Tags=mark)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def litter(region: str) -> None:
    """Everything that a cluster can leave in a region, ours and Ray's, and things of others beside it."""
    ec2 = boto3.client("ec2", region_name=region)
    stopped = launch(ec2, 2)[1]
    ec2.stop_instances(InstanceIds=[stopped])
    (rays,) = launch(ec2, key=RAY_TAG, cluster="default")
    launch(ec2, key="team", cluster="another")
    zone = f"{region}a"
    ec2.create_volume(AvailabilityZone=zone, Size=60, TagSpecifications=tags("volume"))
    ec2.create_volume(AvailabilityZone=zone, Size=8)
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tags("elastic-ip"))
    ec2.allocate_address(Domain="vpc")
    held = ec2.allocate_address(Domain="vpc")
    ec2.associate_address(AllocationId=held["AllocationId"], InstanceId=rays)
    assert address["AllocationId"] != held["AllocationId"]
    subnet = ec2.describe_subnets()["Subnets"][0]
    ec2.create_network_interface(SubnetId=subnet["SubnetId"], TagSpecifications=tags("network-interface"))
    ec2.create_launch_template(
        LaunchTemplateName="sparring-main", LaunchTemplateData={"InstanceType": "m5.large"},
        TagSpecifications=tags("launch-template"),
    )  # fmt: skip
    marks = {"sparring-main": TAG, "ray-autoscaler-default": RAY_TAG, "web": "team"}
    groups = [
        ec2.create_security_group(
            GroupName=name, Description="x", VpcId=subnet["VpcId"], TagSpecifications=tags("security-group", key)
        )["GroupId"]
        for name, key in marks.items()
    ]
    for one, other in ((0, 1), (1, 0)):  # each names the other: neither can go first
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": groups[other]}]}
        ec2.authorize_security_group_ingress(GroupId=groups[one], IpPermissions=[rule])
    ec2.create_key_pair(KeyName="sparring-main", TagSpecifications=tags("key-pair"))
    for name in (f"ray-autoscaler_{region}", "mine"):
        ec2.create_key_pair(KeyName=name)
    options = {"SpotPrice": "0.1", "InstanceCount": 1, "Type": "persistent"}
    ec2.request_spot_instances(
        **options,
        LaunchSpecification={"ImageId": IMAGE, "InstanceType": "m5.large"},
        TagSpecifications=tags("spot-instances-request"),
    )


def test_an_empty_account_has_nothing_left() -> None:
    assert left(WEST, EAST) == []


def test_everything_of_ours_and_rays_is_listed_and_nothing_else() -> None:
    litter(WEST)
    make_role("sparring-main-us-west-2", "main")
    make_role("ray-autoscaler-v1")
    make_role("billing")
    make_role("sparring-gateway")  # of docs/deploy.md: no cluster's
    found = left()
    count = {kind: kinds(found).count(kind) for kind in kinds(found)}
    assert count == {
        "spot request": 1, "instance": 4, "volume": 5, "elastic address": 2, "network interface": 1,
        "launch template": 1, "security group": 2, "key pair": 2, "instance profile": 2, "role": 2,
    }  # fmt: skip
    assert list(count) == ["spot request", "instance", *list(count)[2:]], "what makes or holds the rest comes first"
    states = {one.id: (one.state, one.costs) for one in found if one.kind == "instance"}
    assert sorted(state for state, _ in states.values()) == ["running"] * 3 + ["stopped"]
    assert {costs for state, costs in states.values() if state == "running"} == {"m5.large"}
    free = {"network interface", "launch template", "security group", "key pair", "instance profile", "role"}
    assert {one.kind for one in found if not one.costs} == {*free, "instance"}  # a stopped one costs its disks alone
    prices = {(one.kind, one.costs): one.dollars_per_month for one in found}
    assert prices["instance", "m5.large"] == pytest.approx(70.08)
    assert prices["volume", "60 GiB"] == pytest.approx(4.8)
    assert prices["elastic address", "an address"] == pytest.approx(3.65)
    assert {one.kind for one in found if one.dollars_per_month is None} == {"spot request"}
    assert all(one.age_s is None or one.age_s >= 0 for one in found)
    assert {one.cluster for one in found if one.kind == "instance"} == {"main", "default"}


def test_the_printed_commands_in_their_order_leave_nothing_in_two_regions() -> None:
    for region in (WEST, EAST):
        litter(region)
    make_role("sparring-main-us-west-2", "main")
    make_role("ray-autoscaler-v1")
    assert {one.region for one in left(WEST, EAST)} == {WEST, EAST, "global"}
    for command in leftovers.removal_script(command for one in left(WEST, EAST) for command in one.commands):
        obey(command)
    assert left(WEST, EAST) == []
    for region in (WEST, EAST):  # and the things of others are untouched
        ec2 = boto3.client("ec2", region_name=region)
        assert [key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]] == ["mine"]
        assert "web" in {group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]}
        states = [i["State"]["Name"] for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
        assert states.count("running") == 1


ARNS = {  # what a command removes, as a policy names it
    **{kind: f"arn:aws:ec2:{{region}}:1:{kind.replace(' ', '-')}/{{id}}" for kind in leftovers.KINDS},
    "elastic address": "arn:aws:ec2:{region}:1:elastic-ip/{id}",
    "spot request": "arn:aws:ec2:{region}:1:spot-instances-request/{id}",
    **{kind: f"arn:aws:iam::1:{kind.replace(' ', '-')}/{{id}}" for kind in ("role", "instance profile")},
}


def allowed(policy: dict[str, Any], action: str, arn: str, carried: set[str]) -> bool:
    """Whether a policy allows it of a resource that carries these tags; conditions other than on tags hold for none."""

    def holds(statement: dict[str, Any]) -> bool:
        said = statement.get("Condition", {})
        wanted = {key.partition("/")[2] for test in said.values() for key in test if "ResourceTag/" in key}
        return len(said) <= 1 and (wanted <= carried if wanted else not said)

    return any(
        action in statement["Action"]
        and any(
            fnmatch(arn, one)
            for one in [statement["Resource"]] * isinstance(statement["Resource"], str) or statement["Resource"]
        )
        and holds(statement)
        for statement in policy["Statement"]
    )


def test_the_users_policy_allows_every_command_that_is_printed_of_what_carries_a_tag_or_rays_name() -> None:
    litter(EAST)  # another region than the cluster's
    make_role("sparring-main-us-west-2", "main")
    make_role("ray-autoscaler-v1")
    policy = prerequisites.user_policy(ClusterPlan(name="other", region=WEST))
    untagged = []
    for one in left(EAST):
        if (tag := tag_of(one)) is None:
            untagged.append(one.kind)
            continue
        for command in one.commands:
            words = command.split()
            if words[2] == "wait":
                continue
            action = f"{words[1]}:{''.join(word.capitalize() for word in words[2].split('-'))}"
            target = next((each for each in left(EAST) if each.kind == "instance" and each.id in words), one)
            arn = ARNS[target.kind].format(region=EAST, id=target.id)
            assert allowed(policy, action, arn, {tag}), f"{command}: {action} on {arn}"
            assert not allowed(policy, action, ARNS[target.kind].format(region=EAST, id="mine"), set()), action
    assert set(untagged) == {"volume", "elastic address"}, "listed because an instance of a cluster holds it"


def tag_of(one: Leftover) -> str | None:
    """The tag that it carries in `litter`; "" where Ray's name shows whose it is; None where its instance shows it."""
    if one.name.startswith("ray-autoscaler") and one.kind != "security group":
        return ""
    if one.kind == "elastic address" and len(one.commands) > 1:
        return None
    if one.kind == "volume" and one.cluster == "default":
        return None
    return RAY_TAG if one.cluster == "default" or one.name.startswith("ray-autoscaler") else TAG


def test_one_cluster_is_asked_for_alone() -> None:
    litter(WEST)
    assert "default" not in {one.cluster for one in left(cluster="main")}
    assert "main" in {one.cluster for one in left(cluster="main")}


@pytest.mark.slow
def test_more_than_a_page_is_found() -> None:
    ec2 = boto3.client("ec2", region_name=WEST)
    for _ in range(3):
        launch(ec2, 90)
    iam = boto3.client("iam", region_name=WEST)
    for number in range(120):
        iam.create_role(RoleName=f"ray-autoscaler-{number:03}", AssumeRolePolicyDocument='{"Version": "2012-10-17"}')
    found = left()
    assert (kinds(found).count("instance"), kinds(found).count("role")) == (270, 120)


@pytest.mark.slow
def test_every_region_is_looked_through_on_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    litter(EAST)
    assert (
        main(["cluster", "leftovers", "--region", "eu-central-1", "--file", str(tmp_path / "no.yaml"), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["leftovers"] == []
    assert main(["cluster", "leftovers", "--all", "--file", str(tmp_path / "no.yaml"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {one["region"] for one in said["leftovers"]} == {EAST}
    assert len(said["regions"]) > 10
    assert said["costing"] == sum(bool(one["costs"]) for one in said["leftovers"])
    assert all(one["commands"] for one in said["leftovers"])


def test_people_see_a_table_and_the_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    litter(WEST)
    assert main(["cluster", "leftovers", "--file", str(tmp_path / "no.yaml")]) == 0
    said = capsys.readouterr().out
    assert f"prices: {leftovers.PRICES_FROM} (? where the price is not known here)" in said
    assert "$ a month" in said
    assert said.index("terminate-instances") < said.index("wait instance-terminated") < said.index("delete-volume")


def test_a_region_that_is_none_is_one_sentence() -> None:
    with pytest.raises(SparringError) as caught:
        find(["us-wset-2"], NOW)
    assert str(caught.value) == "--region us-wset-2: AWS has no such region. Did you mean 'us-west-2'?"


def test_no_credentials_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SparringError) as caught:
        find([WEST], NOW)
    assert str(caught.value) == (
        "AWS us-west-2: there are no AWS credentials (Unable to locate credentials). "
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role."
    )


def test_a_profile_that_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SparringError, match="nobody"):
        find([WEST], NOW)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("ExpiredToken", "these AWS credentials have expired"),
        ("RequestExpired", "these AWS credentials have expired"),
        ("AuthFailure", "EC2 in us-west-2 does not know this access key"),
        ("UnauthorizedOperation", "ec2:DescribeSpotInstanceRequests is not allowed"),
    ],
)
def test_what_aws_refuses_is_one_sentence(code: str, says: str, refusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing(code))
    with pytest.raises(SparringError) as caught:
        find([WEST], NOW)
    assert str(caught.value).startswith(f"AWS {WEST}: {says}. ")


def test_a_server_that_is_away_is_one_sentence(monkeypatch: pytest.MonkeyPatch, unused_port: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(SparringError, match="no EC2 server answers"):
        find([WEST], NOW)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def refusing() -> Any:
    """A server that answers every call with one of EC2's refusals."""
    import http.server
    import threading

    servers = []

    def start(code: str) -> str:
        class Refusal(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                error = f"<Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors>"
                body = f"<Response>{error}<RequestID>1</RequestID></Response>".encode()
                self.send_response(403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()
