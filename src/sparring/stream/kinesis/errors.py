"""What Kinesis and the way to it refuse, as one sentence each: which setting, and what to do."""

import importlib
from typing import Any

from sparring.errors import ConfigError, Missing, NotYours, SparringError, StoreFailed, Unreachable
from sparring.stream.kinesis.url import KinesisAddress

THROTTLED = frozenset((
    "ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException", "Throttling",
    "RequestLimitExceeded", "KMSThrottlingException",
))  # fmt: skip
PASSING = THROTTLED | frozenset((  # the same request may succeed in a moment
    "InternalFailure", "InternalFailureException", "ServiceUnavailable", "ServiceUnavailableException",
    "ResourceInUseException", "500", "502", "503", "504",
))  # fmt: skip
SHARD_CALLS = {"PutRecords", "GetRecords", "GetShardIterator"}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
UNKNOWN = frozenset((
    "UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch",
    "IncompleteSignatureException", "MissingAuthenticationTokenException", "AuthFailure",
))  # fmt: skip
FORBIDDEN = {"AccessDenied", "AccessDeniedException", "KMSAccessDeniedException"}
ABSENT = "ResourceNotFoundException"
ITERATOR_EXPIRED = "ExpiredIteratorException"
UNKNOWN_OPERATION = {"UnknownOperationException", "UnknownOperation", "NotImplementedError"}
NO_KINESIS = "Check that endpoint= in it is a Kinesis server"

_faults = importlib.import_module("botocore.exceptions")
AnyFault = (_faults.BotoCoreError, _faults.ClientError)
Answered = _faults.ClientError  # the server said no; every other fault means that it said nothing of use


def code_of(error: Exception) -> str:
    """The server's own word for a refusal, "" where it gave none."""
    answer: dict[str, Any] = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def passing(error: Exception) -> bool:
    """Whether the same call may succeed in a moment: throttled, a server's own trouble, or a broken connection."""
    if isinstance(error, Answered):
        return code_of(error) in PASSING
    return isinstance(error, (_faults.HTTPClientError, _faults.ConnectionError))


def explain(error: Exception, address: KinesisAddress) -> SparringError:
    """The error as a sentence for the operator."""
    if isinstance(error, Answered):
        return _refused(error, address)
    if isinstance(error, (_faults.NoCredentialsError, _faults.PartialCredentialsError)):
        return no_credentials(address)
    if isinstance(error, _faults.CredentialRetrievalError):
        return no_credentials(address, f" ({_short(error)})")
    if isinstance(error, (_faults.TokenRetrievalError, _faults.UnauthorizedSSOTokenError, _faults.SSOTokenLoadError)):
        return _expired(address)
    if isinstance(error, _faults.ProfileNotFound):
        return Missing(_short(error), where=address.where, do="Set AWS_PROFILE to a profile that there is")
    if isinstance(error, _faults.NoRegionError):
        return ConfigError("it names no region", where=address.where, do="Add ?region=… to it, or set AWS_REGION")
    if isinstance(error, (_faults.HTTPClientError, _faults.ConnectionError)):
        do = "Correct region= in it"
        if address.endpoint:
            do = "Correct endpoint= in it, or start what should answer there"
        wrong = f"{address.place} does not answer ({type(error).__name__})"
        return Unreachable(wrong, where=address.where, do=f"{do}, or look at the network")
    return Unreachable(f"{address.place} gave no sound answer ({_short(error)})", where=address.where, do=NO_KINESIS)


def no_credentials(address: KinesisAddress, why: str = "") -> SparringError:
    """There are no credentials to sign with."""
    do = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role"
    return Missing(f"there are no AWS credentials{why}", where=address.where, do=do)


def _refused(error: Any, address: KinesisAddress) -> SparringError:
    code = code_of(error)
    if code == ABSENT:
        do = "Run `spar stream create` for it, or correct its name and region="
        return Missing(f"there is no stream {address.name!r} at {address.place}", where=address.where, do=do)
    if code in EXPIRED:
        return _expired(address)
    if code in UNKNOWN:
        do = "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_PROFILE, and region= in it"
        return NotYours(f"{address.place} does not know these credentials ({code})", where=address.where, do=do)
    if code in FORBIDDEN:
        wrong = f"these credentials may not call kinesis:{error.operation_name}"
        return NotYours(wrong, where=address.where, do="Allow it in their policy (docs/deploy.md has one)")
    if code in THROTTLED and error.operation_name in SHARD_CALLS:  # of others the limit is the account's
        do = "Add shards with `spar stream reshard`, and send it again later"
        wrong = f"{address.name} is asked for more than its shards give ({code})"
        return StoreFailed(wrong, where=address.where, do=do)
    if code.isdigit() or code in UNKNOWN_OPERATION:
        wrong = f"{address.place} answered {code} to {error.operation_name}"
        return Unreachable(wrong, where=address.where, do=NO_KINESIS)
    text = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    wrong = f"{error.operation_name} failed: {code} {text}".rstrip()
    return StoreFailed(wrong, where=address.where, do="Correct that, then try again")


def _expired(address: KinesisAddress) -> SparringError:
    do = "Run `aws sso login`, or renew AWS_SESSION_TOKEN"
    return NotYours("these AWS credentials have expired", where=address.where, do=do)


def _short(error: Exception) -> str:
    lines = str(error).strip().rstrip(".").splitlines()
    return lines[0][:200] if lines else type(error).__name__
