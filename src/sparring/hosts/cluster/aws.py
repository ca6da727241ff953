"""Clients of AWS for clusters. Credentials are boto3's business: we neither read nor keep them."""

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from sparring.aws import AnyFault, AwsAddress, explain
from sparring.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Ec2(AwsAddress):
    """Machines of a region."""

    setting: str = "your AWS settings"

    service = "EC2"
    policy_page = "`spar cluster yaml` writes such a policy"

    @property
    def where(self) -> str:
        return f"AWS {self.region}".rstrip()


class Iam(Ec2):
    """Roles of the account."""

    service = "IAM"


@contextmanager
def client(address: AwsAddress) -> Iterator[Any]:
    """A client there; what AWS refuses inside the block is one sentence. A region that AWS does not have is refused at
    once, not after a minute of silence."""
    region = address.region
    config = Config(connect_timeout=10, read_timeout=60, retries={"max_attempts": 5, "mode": "standard"})
    try:
        made = boto3.client(address.service.lower(), region_name=region, config=config)
        session = boto3.DEFAULT_SESSION
        known = [
            name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)
        ]
        if region not in known:
            near = difflib.get_close_matches(region, known, n=1)
            do = f"Did you mean {near[0]!r}" if near else "Run `aws ec2 describe-regions` for the list"
            raise ConfigError("AWS has no such region", where=f"--region {region}", do=do)
        yield made
    except AnyFault as error:
        raise explain(error, address) from None


def default_region() -> str:
    """The region of this machine's AWS settings, "" without one."""
    try:
        return str(boto3.Session().region_name or os.environ.get("AWS_REGION") or "")
    except AnyFault as error:
        raise explain(error, Ec2()) from None
