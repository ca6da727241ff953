"""The file for `ray up`: a plan as Ray's cluster launcher reads it, with the reason beside what is unusual."""

import json
import math
from pathlib import Path
from typing import Any

from sparring.hosts.cluster import TAG
from sparring.hosts.cluster.plan import ClusterPlan

ENVIRONMENT = (
    "~/sparring-env"  # on the nodes: a virtual environment of our own, so that the image's Python stays as it is
)
WHEELS, FOLDER, DATA = "~/sparring-wheels", "~/sparring-folder", "~/sparring-data"
EXTRAS = "train,services,games,ray"
HEAD, WORKER = "head", "worker"

REASONS = {  # comments in the file, by path
    "cluster_name": "Written by `spar cluster yaml`. No credential is in here: they come from your AWS profile.",
    "idle_timeout_minutes": "A worker without work is terminated after this. The head stays until `spar cluster down`.",
    "provider.cache_stopped_nodes": "Terminate, never stop: the disks of stopped nodes go on costing.",
    "provider.key_pair": "`spar cluster up` makes the key pair and the closed security group by this name, tagged.",
    "auth": "The private key is ~/.ssh/<key_name>.pem; it never leaves this machine.",
    "available_node_types.head.node_config.IamInstanceProfile": (
        "Made by `spar cluster up` from the policy file beside this one. Without this line Ray would give the head all "
        "of EC2 and S3."
    ),
    "available_node_types.head.node_config.InstanceInitiatedShutdownBehavior": (
        "A node that shuts itself down is terminated, disk and all."
    ),
    "setup_commands": "On every node; versions are pinned, since Ray's must be the same on all.",
    "head_start_ray_commands": (
        "The dashboard and job server answer on the head's loopback alone; `ray dashboard FILE` opens a tunnel."
    ),
}


def document(plan: ClusterPlan, ray_version: str, sparring_version: str) -> dict[str, Any]:
    """The whole file as plain data; Ray's own schema accepts it."""
    return {
        "cluster_name": plan.name,
        "max_workers": plan.max_workers,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": plan.idle_minutes,
        "provider": {
            "type": "aws",
            "region": plan.region,
            "cache_stopped_nodes": False,
            "use_internal_ips": plan.private,
            "key_pair": {"key_name": plan.group},
            "security_group": {"GroupName": plan.group},
        },
        "auth": {"ssh_user": "ubuntu"},
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": {}, "min_workers": 0, "max_workers": 0, "node_config": _head(plan)},
            WORKER: {
                "resources": {},
                "min_workers": plan.min_workers,
                "max_workers": plan.max_workers,
                "node_config": _worker(plan),
            },
        },
        "file_mounts": _mounts(plan),
        "cluster_synced_files": [],
        "initialization_commands": ["cloud-init status --wait > /dev/null || true"],
        "setup_commands": _setup(plan, ray_version, sparring_version),
        "head_setup_commands": [f"{ENVIRONMENT}/bin/pip install --quiet 'boto3>=1.35'", f"mkdir -p {DATA}"],
        "worker_setup_commands": [],
        "head_start_ray_commands": _starts(
            plan,
            "--head --port=6379 --object-manager-port=8076 --dashboard-host=127.0.0.1"
            " --autoscaling-config=~/ray_bootstrap_config.yaml --disable-usage-stats",
        ),
        "worker_start_ray_commands": _starts(plan, "--address=$RAY_HEAD_IP:6379 --object-manager-port=8076"),
        "metadata": {TAG: plan.name, "ssh_from": plan.ssh_from},
    }


def _node(plan: ClusterPlan, node_type: str, tagged: list[str]) -> dict[str, Any]:
    tags = [{"Key": TAG, "Value": plan.name}]
    ebs = {"VolumeSize": plan.disk_gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    config: dict[str, Any] = {
        "InstanceType": node_type,
        "ImageId": plan.image_of(node_type),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": ebs}],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in tagged],
    }
    if plan.subnets:
        config["SubnetIds"] = list(plan.subnets)
    return config


def _head(plan: ClusterPlan) -> dict[str, Any]:
    config = _node(plan, plan.head_type, ["instance", "volume", "network-interface"])
    return config | {"IamInstanceProfile": {"Name": plan.role}}


def _worker(plan: ClusterPlan) -> dict[str, Any]:
    if not plan.spot:
        return _node(plan, plan.worker_type, ["instance", "volume", "network-interface"])
    config = _node(plan, plan.worker_type, ["instance", "volume", "network-interface", "spot-instances-request"])
    limit = {"SpotOptions": {"MaxPrice": f"{plan.max_price:g}"}} if plan.max_price else {}
    return config | {"InstanceMarketOptions": {"MarketType": "spot", **limit}}


def _mounts(plan: ClusterPlan) -> dict[str, str]:
    mounts = {}
    if plan.wheel:
        mounts[f"{WHEELS}/{Path(plan.wheel).name}"] = str(Path(plan.wheel).resolve())
    if plan.folder:
        mounts[FOLDER] = str(Path(plan.folder).resolve())
    return mounts


def _setup(plan: ClusterPlan, ray_version: str, sparring_version: str) -> list[str]:
    if plan.wheel:
        ours = f"{WHEELS}/{Path(plan.wheel).name}[{EXTRAS}]"  # the shell opens ~, so no quotes
    else:
        ours = f"'{plan.package or f'sparring[{EXTRAS}]=={sparring_version}'}'"
    return [
        "sudo DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -qq && apt-get install -y -qq python3-venv rsync'",
        f"test -x {ENVIRONMENT}/bin/pip || python3 -m venv {ENVIRONMENT}",
        "grep -q sparring-env ~/.bashrc || echo 'export PATH=\"$HOME/sparring-env/bin:$PATH\"' >> ~/.bashrc",
        f"{ENVIRONMENT}/bin/pip install --quiet 'ray[default]=={ray_version}' {ours}",
    ]


def _starts(plan: ClusterPlan, words: str) -> list[str]:
    path = f"PYTHONPATH=$HOME/{FOLDER.removeprefix('~/')} " if plan.folder else ""  # games of one's own, on every node
    commands = [f"{ENVIRONMENT}/bin/ray stop", f"ulimit -n 65536; {path}{ENVIRONMENT}/bin/ray start {words}"]
    if plan.max_hours:  # a new `up` sets the clock again
        commands.append(f"sudo shutdown -P +{max(1, math.ceil(plan.max_hours * 60))}")
    return commands


def as_yaml(value: Any, path: str = "", depth: int = 0) -> str:
    """Plain data as YAML. Scalars are written as JSON, which is YAML and leaves nothing to guess ("no", 1e3)."""
    pad, lines = "  " * depth, []
    if isinstance(value, list):
        for item in value:
            body = as_yaml(item, path, depth + 1).lstrip() if _nested(item) else f"{json.dumps(item)}\n"
            lines.append(f"{pad}- {body}")
        return "".join(lines)
    for key, item in value.items():
        here = f"{path}.{key}" if path else key
        if here in REASONS:
            lines.append(f"{pad}# {REASONS[here]}\n")
        if _nested(item):
            lines.append(f"{pad}{key}:\n{as_yaml(item, here, depth + 1)}")
        else:
            lines.append(f"{pad}{_key(key)}: {json.dumps(item)}\n")
    return "".join(lines)


def _nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)
