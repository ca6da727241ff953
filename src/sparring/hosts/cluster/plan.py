"""What is wanted of a cluster, checked before anything is written or started."""

import ipaddress
import re
from dataclasses import dataclass

from sparring.errors import ConfigError

UBUNTU = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
ARM_TYPE = re.compile(r"[a-z]+\d+g[a-z-]*\.")  # m7g.large, c6gn.xlarge: Graviton


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
    package: str = ""  # what pip installs
    wheel: str = ""  # a wheel on this machine instead of it
    folder: str = ""  # copied to every node: games and settings of one's own
    ssh_from: str = "auto"  # the one address or network that may open SSH; auto: this machine's, found by `up`
    subnets: tuple[str, ...] = ()  # () picks the default network's
    private: bool = False  # nodes are reached by their inner addresses

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise _wrong(
                f"--name {self.name!r}", "Use lower-case letters, digits and dashes, at most 31, a letter first"
            )
        if not 0 <= self.min_workers <= self.max_workers:
            raise _wrong(f"--workers {self.min_workers}:{self.max_workers}", "Write MIN:MAX with 0 <= MIN <= MAX")
        if min(self.max_price, self.idle_minutes, self.max_hours) < 0 or self.disk_gib < 20:
            raise _wrong(
                "a price, time or disk that is too small", "Keep times and prices at 0 or more, disks at 20 GiB"
            )
        if self.max_price and not self.spot:
            raise _wrong("--max-price with --on-demand", "Only spot workers have a price to limit; drop one of the two")
        if self.private and self.ssh_from == "auto":
            raise _wrong(
                "--private without --ssh-from", "Name the inner network that may open SSH, such as 10.0.0.0/16"
            )
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
