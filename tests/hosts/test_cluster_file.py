"""The file for `ray up`: Ray's own schema takes it, Ray's own launcher builds on it (against moto), nothing is open."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import yaml
from moto_cloud import WEST, kinds, left, obey

from sparring.cli import main
from sparring.errors import SparringError
from sparring.hosts.cluster import TAG, launcher, leftovers, prerequisites
from sparring.hosts.cluster.launcher import ClusterPlan, as_yaml, document

HERE = "203.0.113.7/32"
IMAGE = "ami-12c6146b"


def written(folder: Path, *words: str) -> dict[str, Any]:
    assert main(["cluster", "yaml", "--out", str(folder / "cluster.yaml"), *words]) == 0
    return dict(yaml.safe_load((folder / "cluster.yaml").read_text()))


def test_rays_own_schema_takes_the_file(tmp_path: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    for words in ([], ["--on-demand", "--workers", "1:8"], ["--max-price", "0.05", "--folder", str(tmp_path)]):
        table = written(tmp_path, *words)
        validate_config(prepare_config(table))
        worker = table["available_node_types"]["worker"]
        assert ("InstanceMarketOptions" in worker["node_config"]) == ("--on-demand" not in words)
    assert worker["node_config"]["InstanceMarketOptions"]["SpotOptions"] == {"MaxPrice": "0.05"}


def test_what_somebody_added_to_a_policy_is_kept_when_it_is_written_anew(tmp_path: Path) -> None:
    written(tmp_path)
    policy_file = launcher.policy_file(tmp_path / "cluster.yaml", "head")
    policy_file.write_text(made := policy_file.read_text().replace("}", "} ", 1))
    written(tmp_path, "--workers", "1:8")
    before = policy_file.with_name(f"{policy_file.name}.before")
    assert before.read_text() == made != policy_file.read_text()
    written(tmp_path, "--workers", "1:9")
    assert before.read_text() == made


def test_nodes_are_terminated_tagged_closed_and_end_themselves(tmp_path: Path) -> None:
    table = written(tmp_path, "--name", "night", "--idle-minutes", "3", "--max-hours", "8", "--region", "eu-west-1")
    assert table["provider"]["cache_stopped_nodes"] is False
    assert table["idle_timeout_minutes"] == 3
    for node in table["available_node_types"].values():
        config = node["node_config"]
        assert config["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert config["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
        tagged = {
            one["ResourceType"]
            for one in config["TagSpecifications"]
            if one["Tags"] == [{"Key": TAG, "Value": "night"}]
        }
        assert {"instance", "volume", "network-interface"} <= tagged
        assert config["MetadataOptions"]["HttpTokens"] == "required"
    for commands in (table["head_start_ray_commands"], table["worker_start_ray_commands"]):
        assert "sudo shutdown -P +480" in commands
    assert "--dashboard-host=127.0.0.1" in table["head_start_ray_commands"][1]
    text = (tmp_path / "cluster.yaml").read_text().lower()
    assert not any(word in text for word in ("secret", "access_key", "0.0.0.0"))


def test_a_wheel_is_copied_and_installed_and_ray_is_pinned(tmp_path: Path) -> None:
    import ray

    wheel = tmp_path / "sparring-9.9.9-py3-none-any.whl"
    wheel.touch()
    table = written(tmp_path, "--wheel", str(wheel))
    assert table["file_mounts"] == {f"~/sparring-wheels/{wheel.name}": str(wheel)}
    install = table["setup_commands"][-1]
    assert f"'ray[default]=={ray.__version__}'" in install
    assert install.endswith(f"~/sparring-wheels/{wheel.name}[train,services,games,ray,aws,cassandra]")


def test_without_a_wheel_one_is_made_of_the_code_that_runs_here_and_pip_installs_it(tmp_path: Path) -> None:
    table = written(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert table["file_mounts"] == {f"~/sparring-wheels/{wheel.name}": str(wheel)}
    first = wheel.read_bytes()
    written(tmp_path)
    assert wheel.read_bytes() == first, "the same code is the same wheel"
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "-q", "--no-deps", "--offline"]
    subprocess.run([*uv, "--target", str(tmp_path / "node"), str(wheel)], check=True)
    program = "import sparring, sparring.cli; print(sparring.__file__); sparring.cli.main(['--version'])"
    place = {"PYTHONPATH": str(tmp_path / "node"), "PATH": os.environ["PATH"]}
    said = subprocess.run([sys.executable, "-c", program], env=place, cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.split() == [str(tmp_path / "node" / "sparring" / "__init__.py"), "spar", "0.1.0"], said.stderr
    assert (tmp_path / "node" / "sparring" / "dashboard").is_dir()
    named = written(tmp_path, "--package", "sparring[train,ray]==0.1.0")
    assert named["file_mounts"] == {}
    assert named["setup_commands"][-1].endswith(" 'sparring[train,ray]==0.1.0'")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ssh-from", "0.0.0.0/0"], "That is everybody"),
        (["--ssh-from", "home"], "Write an address or a network"),
        (["--workers", "5:2"], "MIN:MAX"),
        (["--workers", "many"], "MIN:MAX"),
        (["--name", "Été"], "lower-case letters"),
        (["--on-demand", "--max-price", "1"], "Only spot workers"),
        (["--private"], "--ssh-from"),
        (["--wheel", "nowhere.whl"], "it is not there"),
        (["--", "train"], "too many words"),
    ],
)
def test_a_wrong_wish_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["cluster", "yaml", "--out", str(tmp_path / "c.yaml"), *words]) == 1
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "c.yaml").exists()


def test_every_change_that_a_policy_allows_is_bound_to_the_tag_or_the_name() -> None:
    plan = ClusterPlan(name="night", region="cn-north-1")
    looks = ("ec2:Describe", "iam:List", "iam:Get")
    for which in (prerequisites.head_policy(plan), prerequisites.user_policy(plan)):
        for statement in which["Statement"]:
            if all(action.startswith(looks) for action in statement["Action"]):
                continue
            bound = (
                "night" in json.dumps(statement)
                or "/ray-autoscaler*" in json.dumps(statement)
                or statement["Sid"] in ("On", "InANetwork", "NewestImage")
            )
            assert bound or "Condition" in statement, statement
        assert "arn:aws-cn:" in json.dumps(which)
    head = {action for statement in prerequisites.head_policy(plan)["Statement"] for action in statement["Action"]}
    assert {action for action in head if not action.startswith("ec2:Describe")} == {
        "ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances", "ssm:GetParameters",
    }  # fmt: skip


def plan_of(**more: Any) -> ClusterPlan:
    return ClusterPlan(image=IMAGE, ssh_from=HERE, **more)


def rules(ec2: Any) -> set[tuple[str, str]]:
    group = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["sparring-main"]}])
    found: set[tuple[str, str]] = set()
    for rule in group["SecurityGroups"][0]["IpPermissions"]:
        found |= {(rule["IpProtocol"], one["CidrIp"]) for one in rule.get("IpRanges", [])}
        found |= {(rule["IpProtocol"], one["GroupId"]) for one in rule.get("UserIdGroupPairs", [])}
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("cloud")
def test_ray_builds_on_our_ground_and_all_of_it_is_found_and_removed(tmp_path: Path) -> None:
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.commands import _bootstrap_config

    plan, keys = plan_of(), Path(os.environ["HOME"]) / ".ssh"
    done = prerequisites.prepare(plan, prerequisites.head_policy(plan), keys)
    assert len(done) == 5
    assert prerequisites.prepare(plan, prerequisites.head_policy(plan), keys) == []
    assert (keys / "sparring-main.pem").stat().st_mode & 0o777 == 0o600
    ec2 = boto3.client("ec2", region_name=WEST)
    before = rules(ec2)
    assert ("tcp", HERE) in before
    assert len(before) == 2

    config = _bootstrap_config(document(plan, "2.60.0"), no_config_cache=True)
    assert rules(ec2) == before, "Ray left the group closed"
    head = config["available_node_types"]["head"]["node_config"]
    assert (head["KeyName"], head["IamInstanceProfile"]) == ("sparring-main", {"Name": "sparring-main-us-west-2"})
    provider = AWSNodeProvider(config["provider"], "main")
    for kind in ("head", "worker"):
        tags = {"ray-node-kind": kind, "ray-node-name": f"ray-main-{kind}"}
        provider.create_node(config["available_node_types"][kind]["node_config"], tags, 1)
    found = left(cluster="main")
    assert {"instance", "volume", "security group", "key pair", "instance profile", "role"} <= set(kinds(found))
    assert kinds(found).count("instance") == 2
    assert {one.cluster for one in found} == {"main"}
    for command in leftovers.removal_script(command for one in found for command in one.commands):
        obey(command)
    assert left() == []


@pytest.mark.slow
@pytest.mark.usefixtures("cloud")
def test_what_bare_ray_makes_is_found_and_its_open_group_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.autoscaler._private.aws import config as rays
    from ray.autoscaler._private.commands import _bootstrap_config

    role = '{"Version": "2012-10-17", "Statement": []}'
    boto3.client("iam", region_name=WEST).create_role(RoleName="ray-autoscaler-v1", AssumeRolePolicyDocument=role)
    monkeypatch.setattr(rays, "time", SimpleNamespace(sleep=lambda seconds: None))  # 2 x 15 s for AWS to settle
    plan = plan_of()
    table = document(plan, "2.60.0")
    del table["available_node_types"]["head"]["node_config"]["IamInstanceProfile"]
    del table["provider"]["key_pair"]
    _bootstrap_config(table, no_config_cache=True)
    found = left()
    assert kinds(found) == ["security group", "key pair", "instance profile", "role"]
    assert found[0].state == "open to the world"
    assert {one.name for one in found[1:]} == {"ray-autoscaler_us-west-2", "ray-autoscaler-v1"}
    keys = Path(os.environ["HOME"]) / ".ssh"
    assert any("closed 1 rules" in one for one in prerequisites.prepare(plan, prerequisites.head_policy(plan), keys))
    assert ("tcp", HERE) in rules(boto3.client("ec2", region_name=WEST))
    moved = "198.51.100.4/32"  # another address of ours: the old one is closed
    prerequisites.prepare(replace(plan, ssh_from=moved), prerequisites.head_policy(plan), keys)
    assert {source for protocol, source in rules(boto3.client("ec2", region_name=WEST)) if protocol == "tcp"} == {moved}


@pytest.mark.usefixtures("cloud")
def test_half_a_key_pair_is_one_sentence() -> None:
    plan, keys = plan_of(), Path(os.environ["HOME"]) / ".ssh"
    prerequisites.prepare(plan, prerequisites.head_policy(plan), keys)
    (keys / "sparring-main.pem").unlink()
    with pytest.raises(SparringError, match="aws ec2 delete-key-pair"):
        prerequisites.prepare(plan, prerequisites.head_policy(plan), keys)


@pytest.mark.usefixtures("cloud")
def test_down_without_a_node_makes_nothing_and_shows_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "--ssh-from", HERE)
    file = str(tmp_path / "cluster.yaml")
    assert main(["cluster", "down", "--file", file]) == 0
    assert "nothing is left in us-west-2" in capsys.readouterr().out
    assert left() == []
    plan = plan_of()
    prerequisites.prepare(plan, prerequisites.head_policy(plan), Path(os.environ["HOME"]) / ".ssh")
    assert main(["cluster", "down", "--file", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["kind"] for one in said["leftovers"]] == ["security group", "key pair", "instance profile", "role"]


@pytest.mark.slow
@pytest.mark.usefixtures("cloud")
def test_submit_to_a_cluster_that_is_not_up_fails_with_rays_own_words(tmp_path: Path) -> None:
    written(tmp_path, "--ssh-from", HERE)
    words = [sys.executable, "-m", "sparring", "cluster", "submit", "--file", str(tmp_path / "cluster.yaml"), "--"]
    found = subprocess.run([*words, "train", "cartpole"], capture_output=True, text=True, timeout=120)
    assert found.returncode == 1
    assert "ray exec" in found.stdout
    assert "train cartpole --on ray://auto --data ~/sparring-data" in found.stdout


def test_words_for_the_head_are_completed_and_nothing_is_said_twice() -> None:
    assert launcher.on_the_head(["train", "duel", "--on", "ray://auto"])[-2:] == ["--data", "~/sparring-data"]
    assert launcher.on_the_head(["models", "list"]) == ["spar", "models", "list", "--data", "~/sparring-data"]
    with pytest.raises(SparringError, match="nothing to run"):
        launcher.on_the_head([])


@pytest.mark.parametrize("text", [None, "a: [", "just words", "cluster_name: x"])
def test_a_file_that_is_no_cluster_is_one_sentence(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(SparringError, match="spar cluster yaml"):
        launcher.read(tmp_path / "cluster.yaml")


def test_the_file_says_why_beside_the_document() -> None:
    value = document(plan_of(), "1")
    text = as_yaml(value)
    assert yaml.safe_load(text) == value
    comments = [line.strip() for line in text.splitlines() if line.lstrip().startswith("# ")]
    assert sorted(comments) == sorted(f"# {reason}" for reason in launcher.REASONS.values())
    assert "&id" not in text
