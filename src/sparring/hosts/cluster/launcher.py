"""A Ray cluster on EC2: what is wanted of it, the file for `ray up` that says so, and Ray's own commands with it."""

import base64
import hashlib
import importlib
import importlib.metadata
import importlib.util
import ipaddress
import json
import math
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError, Missing
from sparring.hosts.cluster import TAG

UBUNTU = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
ARM_TYPE = re.compile(r"[a-z]+\d+g[a-z-]*\.")  # m7g.large, c6gn.xlarge: Graviton
ENVIRONMENT = "~/sparring-env"  # on the nodes: a virtual environment, so that the image's Python stays as it is
WHEELS, FOLDER, DATA = "~/sparring-wheels", "~/sparring-folder", "~/sparring-data"
EXTRAS = "train,services,games,ray,aws,cassandra"  # with what --from store and an S3 registry need
Say = Callable[[str], None]

REASONS = {  # comments in the file, by key
    "cluster_name": "Written by `spar cluster yaml`. No credential is in here: they come from your AWS profile.",
    "idle_timeout_minutes": "A worker without work is terminated after this. The head stays until `spar cluster down`.",
    "cache_stopped_nodes": "Terminate, never stop: the disks of stopped nodes go on costing.",
    "key_pair": "`spar cluster up` makes the key pair and the closed security group by this name, tagged.",
    "auth": "The private key is ~/.ssh/<key_name>.pem; it never leaves this machine.",
    "IamInstanceProfile": (
        "Made by `spar cluster up` from the policy file beside this one. Without this line Ray would give the head all "
        "of EC2 and S3."
    ),
    "InstanceInitiatedShutdownBehavior": "A node that shuts itself down is terminated, disk and all.",
    "setup_commands": "On every node; versions are pinned, since Ray's must be the same on all.",
    "head_start_ray_commands": (
        "The dashboard and job server answer on the head's loopback alone; `ray dashboard FILE` opens a tunnel."
    ),
}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One head that stays, and workers that come and go with the work."""

    name: str = "main"
    region: str = "us-west-2"
    head_type: str = "m5.large"
    worker_type: str = "m5.large"
    min_workers: int = 0
    max_workers: int = 2
    spot: bool = True  # workers only: a head that is taken back takes the run with it
    max_price: float = 0.0  # dollars an hour for a spot worker; 0: up to the on-demand price
    idle_minutes: float = 5.0  # a worker without work is terminated after this
    max_hours: float = 24.0  # every node ends itself after this, also a forgotten one; 0: never
    image: str = ""  # an AMI; "": Ubuntu 24.04, as Canonical names it on the day
    disk_gib: int = 60
    package: str = f"sparring[{EXTRAS}]"  # what pip installs
    wheel: str = ""  # a wheel on this machine instead of it
    folder: str = ""  # copied to every node: games and settings of one's own
    ssh_from: str = "auto"  # the one address or network that may open SSH; auto: this machine's, found by `up`
    subnets: tuple[str, ...] = ()  # () picks the default network's
    private: bool = False  # nodes are reached by their inner addresses

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            do = "Use lower-case letters, digits and dashes, at most 31, a letter first"
            raise _wrong(f"--name {self.name!r}", do)
        if not 0 <= self.min_workers <= self.max_workers:
            raise _wrong(f"--workers {self.min_workers}:{self.max_workers}", "Write MIN:MAX with 0 <= MIN <= MAX")
        if min(self.max_price, self.idle_minutes, self.max_hours) < 0 or self.disk_gib < 20:
            do = "Keep times and prices at 0 or more, disks at 20 GiB"
            raise _wrong("a price, time or disk that is too small", do)
        if self.max_price and not self.spot:
            raise _wrong("--max-price with --on-demand", "Only spot workers have a price to limit; drop one of the two")
        if self.private and self.ssh_from == "auto":
            do = "Name the inner network that may open SSH, such as 10.0.0.0/16"
            raise _wrong("--private without --ssh-from", do)
        if self.ssh_from != "auto":
            network(self.ssh_from)

    @property
    def group(self) -> str:
        """The name of its security group and key pair."""
        return f"sparring-{self.name}"

    @property
    def role(self) -> str:
        """The name of the head's role and instance profile: those are an account's, not a region's."""
        return f"{self.group}-{self.region}"

    def image_of(self, node_type: str) -> str:
        """The image for a type of instance."""
        return self.image or UBUNTU.format(arch="arm64" if ARM_TYPE.match(node_type) else "amd64")


def network(text: str) -> str:
    """An address or network in CIDR notation; the whole world is refused."""
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise _wrong(f"--ssh-from {text!r}", "Write an address or a network, such as 203.0.113.7/32") from None
    if found.prefixlen == 0:
        raise _wrong(f"--ssh-from {text}", "That is everybody; name your own address, such as 203.0.113.7/32")
    return str(found)


def workers(text: str) -> tuple[int, int]:
    """ "MIN:MAX", or "MAX"."""
    low, _, high = text.partition(":") if ":" in text else ("0", ":", text)
    if not (low.isdigit() and high.isdigit()):
        raise _wrong(f"--workers {text!r}", "Write MIN:MAX, such as 0:4")
    return int(low), int(high)


def _wrong(wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where="spar cluster", do=do)


def make_wheel(folder: Path) -> Path:
    """A wheel of the package that runs here, written into `folder`: the nodes get this very code, published or not."""
    package = Path(__file__).parents[2]
    about = importlib.metadata.distribution("sparring")
    info = f"sparring-{about.version}.dist-info"
    files = {
        f"sparring/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        files[f"{info}/{name}"] = (about.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: sparring\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    made = folder / f"sparring-{about.version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():  # without their times: the same code makes the same bytes
            wheel.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return made


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def document(plan: ClusterPlan, ray_version: str) -> dict[str, Any]:
    """The whole file as plain data; Ray's own schema accepts it."""
    return {
        "cluster_name": plan.name,
        "max_workers": plan.max_workers,
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
        "head_node_type": "head",
        "available_node_types": {
            "head": {
                "resources": {},
                "min_workers": 0,
                "max_workers": 0,
                "node_config": _node(plan, plan.head_type) | {"IamInstanceProfile": {"Name": plan.role}},
            },
            "worker": {
                "resources": {},
                "min_workers": plan.min_workers,
                "max_workers": plan.max_workers,
                "node_config": _worker(plan),
            },
        },
        "file_mounts": _mounts(plan),
        "initialization_commands": ["cloud-init status --wait > /dev/null || true"],
        "setup_commands": _setup(plan, ray_version),
        "head_setup_commands": [f"{ENVIRONMENT}/bin/pip install --quiet 'boto3>=1.35'", f"mkdir -p {DATA}"],
        "head_start_ray_commands": _starts(
            plan,
            "--head --port=6379 --object-manager-port=8076 --dashboard-host=127.0.0.1"
            " --autoscaling-config=~/ray_bootstrap_config.yaml --disable-usage-stats",
        ),
        "worker_start_ray_commands": _starts(plan, "--address=$RAY_HEAD_IP:6379 --object-manager-port=8076"),
        "metadata": {TAG: plan.name, "ssh_from": plan.ssh_from},
    }


def _node(plan: ClusterPlan, node_type: str, *more_tagged: str) -> dict[str, Any]:
    tagged = ("instance", "volume", "network-interface", *more_tagged)
    ebs = {"VolumeSize": plan.disk_gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    config: dict[str, Any] = {
        "InstanceType": node_type,
        "ImageId": plan.image_of(node_type),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": ebs}],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [{"ResourceType": kind, "Tags": [{"Key": TAG, "Value": plan.name}]} for kind in tagged],
    }
    return config | ({"SubnetIds": list(plan.subnets)} if plan.subnets else {})


def _worker(plan: ClusterPlan) -> dict[str, Any]:
    if not plan.spot:
        return _node(plan, plan.worker_type)
    limit = {"SpotOptions": {"MaxPrice": f"{plan.max_price:g}"}} if plan.max_price else {}
    market = {"InstanceMarketOptions": {"MarketType": "spot", **limit}}
    return _node(plan, plan.worker_type, "spot-instances-request") | market


def _mounts(plan: ClusterPlan) -> dict[str, str]:
    mounts = {}
    if plan.wheel:
        mounts[f"{WHEELS}/{Path(plan.wheel).name}"] = str(Path(plan.wheel).resolve())
    if plan.folder:
        mounts[FOLDER] = str(Path(plan.folder).resolve())
    return mounts


def _setup(plan: ClusterPlan, ray_version: str) -> list[str]:
    # The shell opens ~, so a wheel has no quotes.
    ours = f"{WHEELS}/{Path(plan.wheel).name}[{EXTRAS}]" if plan.wheel else f"'{plan.package}'"
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


def as_yaml(table: dict[str, Any]) -> str:
    """The file's text, each reason above the first line with its key."""
    text: str = importlib.import_module("yaml").safe_dump(table, sort_keys=False, width=math.inf)
    for key, reason in REASONS.items():
        text = re.sub(rf"^( *){key}:", rf"\1# {reason}\n\g<0>", text, count=1, flags=re.MULTILINE)
    return text


def policy_file(file: Path, whose: str) -> Path:
    """The file of the "head" or "user" policy that belongs to a cluster's: cluster-head-policy.json."""
    return file.with_name(f"{file.stem}-{whose}-policy.json")


def read(path: Path) -> ClusterPlan:
    """What a cluster's file says of its plan: all that other commands than `yaml` need of it."""
    if not path.is_file():
        do = "Run `spar cluster yaml` first, or name the file with --file"
        raise Missing("there is no such file", where=str(path), do=do)
    yaml = importlib.import_module("yaml")
    try:
        table: Any = yaml.safe_load(path.read_text())
        node = table["available_node_types"][table["head_node_type"]]["node_config"]
        return ClusterPlan(
            name=str(table["cluster_name"]),
            region=str(table["provider"]["region"]),
            ssh_from=str(table["metadata"]["ssh_from"]),
            private=bool(table["provider"].get("use_internal_ips", False)),
            subnets=tuple(node.get("SubnetIds", ())),
            folder=table.get("file_mounts", {}).get(FOLDER, ""),
        )
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        wrong = f"it is no cluster of ours: {type(error).__name__}: {error}".replace("\n", " ")
        raise ConfigError(wrong, where=str(path), do="Write it again with `spar cluster yaml`") from None


def read_head_policy(file: Path) -> dict[str, Any]:
    """The head's policy as it stands beside a cluster's file: a bucket that is added to it is the head's too."""
    path = policy_file(file, "head")
    if not path.is_file():
        do = "Write it again with `spar cluster yaml`, or give the head's policy back its place"
        raise Missing("there is no such file", where=str(path), do=do)
    try:
        policy: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}", where=str(path), do="Correct that line") from None
    return policy


def up(file: Path, say: Say) -> int:
    """Start the cluster, or bring a running one to its file. Ray's exit code."""
    # Ray remembers what it once found in the account; what was removed since would be asked for again.
    return _ray(["up", "-y", "--no-config-cache", "--disable-usage-stats", str(file)], say)


def submit(file: Path, words: list[str], wait: bool, say: Say) -> int:
    """Run `spar …` on the head as a job of Ray: it goes on when the connection does not. The job's exit code."""
    job = ["job", "submit", "--address", "http://127.0.0.1:8265", *([] if wait else ["--no-wait"])]
    place = f"env -C {FOLDER} PYTHONPATH={FOLDER} " if read(file).folder else ""
    spar = shlex.join(on_the_head(words)).replace(shlex.quote(DATA), DATA)  # the head's shell opens ~
    line = f"{ENVIRONMENT}/bin/ray {shlex.join(job)} -- {place}{ENVIRONMENT}/bin/{spar}"
    return _ray(["exec", "--disable-usage-stats", str(file), line], say)


def on_the_head(words: list[str]) -> list[str]:
    """`spar` with these words, as it should run on the head: on the cluster, and with its data where `down` looks."""
    if not words:
        do = "Write what to run after --, such as `spar cluster submit -- train cartpole --algo apex`"
        raise ConfigError("nothing to run", where="spar cluster submit", do=do)
    where = ["--on", "ray://auto"] if words[0] == "train" and not _has(words, "--on") else []
    data = [] if _has(words, "--data") else ["--data", DATA]
    return ["spar", *words, *where, *data]


def _has(words: list[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def fetch(file: Path, folder: Path, say: Say) -> int:
    """Copy the head's data folder here; what it learned ends with its disk."""
    folder.mkdir(parents=True, exist_ok=True)
    return _ray(["rsync-down", str(file), f"{DATA}/", f"{folder}/"], say)


def down(file: Path, say: Say) -> int:
    """Terminate every node. Ray's exit code."""
    return _ray(["down", "-y", str(file)], say)


def _ray(words: list[str], say: Say) -> int:
    if importlib.util.find_spec("ray") is None:
        do = "Run pip install 'sparring[ray,aws]'"
        raise Missing("the package 'ray' is not installed", where="spar cluster", do=do)
    say(f"$ ray {shlex.join(words)}")
    # This interpreter's Ray, whatever `ray` is on the PATH: its version is the one that the file pins.
    program = [sys.executable, "-m", "ray.scripts.scripts", *words]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ray:
        try:
            for line in ray.stdout or ():
                say(line.rstrip("\n"))
        except KeyboardInterrupt:
            ray.terminate()
            raise
    return ray.returncode
