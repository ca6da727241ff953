"""Servers of AWS, or that speak its protocols: where they are, and what they refuse as one sentence each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from botocore import exceptions as faults

from sparring.errors import ConfigError, SparringError, StoreFailed, Unreachable

AnyFault = (faults.BotoCoreError, faults.ClientError)
SECRETS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
OPTIONS = {  # of every URL
    "region": (r"[\w-]*", "a region such as eu-west-1"),
    "endpoint": (r"(https?://[^\s?#@]+)?", "an address such as http://HOST:PORT, or leave it out for Amazon's own"),
}
PASSING = frozenset((  # the same request may succeed in a moment
    "ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException", "Throttling",
    "RequestLimitExceeded", "KMSThrottlingException", "SlowDown", "InternalFailure", "InternalFailureException",
    "InternalError", "ServiceUnavailable", "ServiceUnavailableException", "ResourceInUseException",
    "500", "502", "503", "504",
))  # fmt: skip

# What is wrong, with {place} and {called} in it, and what to do, with {setting}.
Refusal = tuple[type[SparringError], str, str]
_EXPIRED = ConfigError, "these AWS credentials have expired", "Run `aws sso login`, or renew AWS_SESSION_TOKEN"
_KEY = ConfigError, "{place} does not know this access key", "Check AWS_ACCESS_KEY_ID and AWS_PROFILE"
_SECRET = ConfigError, "the secret key does not fit the access key", "Check AWS_SECRET_ACCESS_KEY and AWS_PROFILE"
_REFUSALS: Mapping[str, Refusal] = {
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"), _EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException"), _KEY),
    **dict.fromkeys(("InvalidToken", "MissingAuthenticationTokenException", "AuthFailure"), _KEY),
    "XAdminUserNotFound": _KEY,  # versitygw's word for it
    **dict.fromkeys(("SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignatureException"), _SECRET),
    "RequestTimeTooSkewed": (ConfigError, "this machine's clock is wrong", "Set it (NTP): the server compares it"),
}
_DENIED = {
    *("AccessDenied", "AccessDeniedException", "KMSAccessDeniedException", "403", "AllAccessDisabled"),
    "UnauthorizedOperation",  # EC2's word for it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAddress:
    """What is asked: the setting that a person wrote, and what it says of the server."""

    setting: str
    region: str = ""  # "": as AWS_REGION or the profile says
    endpoint: str = ""  # "": Amazon's own

    service: ClassVar[str]
    policy_page: ClassVar[str]  # which lists what the credentials must be allowed
    actions: ClassVar[Mapping[str, str]] = {}  # what a policy must allow, for calls with another name
    refusals: ClassVar[Mapping[str, Refusal]] = {}  # by the service's own codes

    @property
    def where(self) -> str:
        """For the head of an error."""
        return f"{self.setting} ({self})"

    @property
    def place(self) -> str:
        """Who should answer, in words."""
        return self.endpoint or f"{self.service} in {self.region}".removesuffix(" in ")


def code_of(error: Exception) -> str:
    """The server's own word for a refusal, or the HTTP status where it gave none; "" where it gave no answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, faults.ClientError) else ""


def passing(error: Exception) -> bool:
    """Whether the same call may succeed in a moment: throttled, a server's own trouble, or a broken connection."""
    return code_of(error) in PASSING or isinstance(error, (faults.HTTPClientError, faults.ConnectionError))


def explain(error: Exception, address: AwsAddress) -> SparringError:
    """The error as a sentence for the operator: which setting, and what to do."""
    answered = isinstance(error, faults.ClientError)
    kind, wrong, do = (_answered if answered else _unanswered)(error, address)
    return kind(wrong, where=address.where, do=do)


def _unanswered(error: Exception, address: AwsAddress) -> Refusal:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    short = lines[0][:200].rstrip(".")
    if isinstance(error, (faults.NoCredentialsError, faults.PartialCredentialsError, faults.CredentialRetrievalError)):
        do = f"Set {SECRETS}, or AWS_PROFILE, or give this machine a role"
        return ConfigError, f"there are no AWS credentials ({short})", do
    if isinstance(error, (faults.TokenRetrievalError, faults.UnauthorizedSSOTokenError, faults.SSOTokenLoadError)):
        return _EXPIRED
    if isinstance(error, faults.ProfileNotFound):
        return ConfigError, short, "Set AWS_PROFILE to a profile that there is"
    if isinstance(error, faults.NoRegionError):
        return ConfigError, "no region is set", f"Add region=… to {address.setting}, or set AWS_REGION"
    if isinstance(error, (faults.HTTPClientError, faults.ConnectionError)):
        do = f"Check endpoint= and region= in {address.setting}, and that the server runs and can be reached"
        return Unreachable, f"no {address.service} server answers at {address.place} ({type(error).__name__})", do
    if isinstance(error, (faults.ParamValidationError, ValueError)):
        short = lines[-1].partition(":")[0].rstrip(".")  # what follows are the rules, as regular expressions
        return ConfigError, short, f"Check the name, endpoint= and region= in {address.setting}"
    return Unreachable, f"{address.place} gave no sound answer ({short})", not_a_server(address)


def _answered(error: Any, address: AwsAddress) -> Refusal:
    code, called = code_of(error), error.operation_name
    if found := address.refusals.get(code) or _REFUSALS.get(code):
        kind, wrong, do = found
        return kind, wrong.format(place=address.place, called=called), do.format(setting=address.setting)
    if code in _DENIED:
        action = f"{address.service.lower()}:{address.actions.get(called, called)}"
        do = f"Let the policy of these credentials allow {action} ({address.policy_page})"
        return ConfigError, f"{action} is not allowed", do
    said = str(error.response.get("Error", {}).get("Message", "")).rstrip(".") or "no reason"
    wrong = f"{address.place} answered {code} to {called}: {said}"
    if code in PASSING:
        return Unreachable, wrong, "Try again later"
    return (Unreachable if code.isdigit() else StoreFailed), wrong, not_a_server(address)


def not_a_server(address: AwsAddress) -> str:
    """What to do after an odd answer: with an endpoint of one's own, something else may have given it."""
    if not address.endpoint:
        return "Correct that, then try again"
    return f"Check that endpoint= in {address.setting} is a {address.service} server, then try again"
