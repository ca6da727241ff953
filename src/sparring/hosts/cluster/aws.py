"""Clients of AWS, and its refusals as sentences. Credentials are boto3's business: we neither read nor keep them."""

import contextlib
import difflib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from sparring.errors import ConfigError, Missing, NotYours, SparringError, Unreachable

EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
UNKNOWN = {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"}
FORBIDDEN = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}


def session() -> Any:
    """One for several clients: what they share takes most of a second to read."""
    boto3 = importlib.import_module("boto3")
    with refusals(""):
        opened = boto3.Session()
        if opened.get_credentials() is None:
            raise _no_credentials()
        return opened


def client(opened: Any, service: str, region: str) -> Any:
    """A client of `service`; a region that AWS does not have is refused here, not after a minute of silence."""
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=10, read_timeout=60, retries={"max_attempts": 5, "mode": "standard"}
    )
    with refusals(region):
        known = [one for part in opened.get_available_partitions() for one in opened.get_available_regions("ec2", part)]
        if region not in known:
            near = difflib.get_close_matches(region, known, n=1)
            do = f"Did you mean {near[0]!r}" if near else "Run `aws ec2 describe-regions` for the list"
            raise ConfigError("AWS has no such region", where=f"--region {region}", do=do)
        return opened.client(service, region_name=region, config=config)


def default_region() -> str:
    """The region of this machine's AWS settings, "" without one."""
    boto3 = importlib.import_module("boto3")
    with refusals(""):
        return str(boto3.Session().region_name or os.environ.get("AWS_REGION") or "")


@contextlib.contextmanager
def refusals(where: str) -> Iterator[None]:
    """What AWS or the way to it refuses inside the block, as one sentence each."""
    faults = importlib.import_module("botocore.exceptions")
    place = f"AWS {where}".rstrip()
    try:
        yield
    except (faults.NoCredentialsError, faults.PartialCredentialsError, faults.CredentialRetrievalError):
        raise _no_credentials() from None
    except (faults.TokenRetrievalError, faults.UnauthorizedSSOTokenError, faults.SSOTokenLoadError):
        raise _expired(place) from None
    except faults.ProfileNotFound as error:
        raise Missing(
            str(error), where="AWS credentials", do="Set AWS_PROFILE to one of `aws configure list-profiles`"
        ) from None
    except faults.ClientError as error:
        raise _refused(error, place) from None
    except (faults.HTTPClientError, faults.ConnectionError) as error:
        do = "Look at the network and at the region's name, then try again"
        raise Unreachable(f"it did not answer ({type(error).__name__})", where=place, do=do) from None


def _refused(error: Any, place: str) -> SparringError:
    code = error.response.get("Error", {}).get("Code", "")
    said = error.response.get("Error", {}).get("Message", "") or str(error)
    if code in EXPIRED:
        return _expired(place)
    if code in UNKNOWN:
        do = "Run `aws sts get-caller-identity`, and `aws configure` where it fails, too"
        return NotYours("AWS does not know these credentials", where=place, do=do)
    if code in FORBIDDEN:
        wrong = f"these credentials may not call {error.operation_name}"
        return NotYours(wrong, where=place, do="Ask for the policy that `spar cluster yaml` writes for the user")
    return Unreachable(
        f"{error.operation_name} failed: {said.rstrip('.')}", where=place, do="Mend that, then try again"
    )


def _expired(place: str) -> SparringError:
    return NotYours(
        "these credentials have expired", where=place, do="Run `aws sso login`, or renew your session token"
    )


def _no_credentials() -> SparringError:
    do = "Run `aws configure`, or set AWS_PROFILE"
    return Missing("there are no AWS credentials", where="AWS", do=do)
