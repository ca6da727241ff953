"""Errors of S3 and of the connection to it, as one sentence: which setting is wrong, and what to do."""

from botocore.exceptions import (
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)

from sparring.errors import ConfigError, SparringError, StoreFailed, Unreachable

# The condition of a put does not hold; AWS says 409 where two conditional puts meet, and a repeated completion finds
# its upload gone.
TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "NoSuchUpload")

_NEEDS = {  # what the policy must allow, by the call that was denied
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "GetBucketPolicy": "s3:GetBucketPolicy",
    "PutBucketPolicy": "s3:PutBucketPolicy",
    "DeleteBucketPolicy": "s3:DeleteBucketPolicy",
}
_KEYS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"


def code_of(error: ClientError) -> str:
    """S3's name for what went wrong, or the HTTP status where it gave none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def sentence(error: Exception, url: str, endpoint: str | None, setting: str) -> SparringError:
    """The error to raise instead; `setting` is the key of spar.toml that holds `url`."""
    if isinstance(error, ClientError):
        return _answered(error, url, endpoint, setting)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError | ProfileNotFound):
        return ConfigError(f"there are no AWS credentials: {_plain(error)}", where=url, do=_KEYS)
    if isinstance(error, TokenRetrievalError):
        return ConfigError(f"the login has ended: {_plain(error)}", where=url, do="Log in again (`aws sso login`)")
    if isinstance(error, NoRegionError):
        return ConfigError("no region is set", where=url, do=f"Add region=… to {setting}, or set AWS_REGION")
    if isinstance(error, HTTPClientError | ConnectionError):
        who = endpoint or "AWS"
        return Unreachable(
            f"no S3 server answers at {who} ({type(error).__name__})",
            where=url,
            do=f"Check endpoint= in {setting}, and that the server runs and can be reached",
        )
    if isinstance(error, ParamValidationError | ValueError):
        return ConfigError(_plain(error), where=url, do=f"Check bucket, endpoint= and region= in {setting}")
    return Unreachable(_plain(error), where=url, do=f"Try again; if it persists, check {setting}")


def _answered(error: ClientError, url: str, endpoint: str | None, setting: str) -> SparringError:
    code = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    match code:
        case "NoSuchBucket":
            wrong, do = "there is no such bucket", f"Create it, or check the bucket's name and endpoint= in {setting}"
        case "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "RequestExpired":
            wrong, do = "the AWS session token has expired", "Log in again, or set fresh AWS_* variables"
        case (
            "InvalidAccessKeyId"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "InvalidToken"
            | "XAdminUserNotFound"  # versitygw's word for it
        ):
            wrong, do = "the server does not know this access key", "Check AWS_ACCESS_KEY_ID or AWS_PROFILE"
        case "SignatureDoesNotMatch":
            wrong, do = "the secret key does not fit the access key", "Check AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
        case "RequestTimeTooSkewed":
            wrong, do = "this machine's clock is wrong", "Set it (NTP); the server compares it with its own"
        case "PermanentRedirect" | "301" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException":
            wrong, do = "the bucket is in another region", f"Set region= in {setting} to the bucket's own"
        case "AccessDenied" | "403" | "AllAccessDisabled" | "AccountProblem":
            needs = _NEEDS.get(error.operation_name, error.operation_name)
            wrong, do = f"{needs} is not allowed", f"Let the policy of these credentials allow {needs} (docs/models.md)"
        case "NotImplemented":
            wrong, do = f"this server has no {error.operation_name}", "Use AWS S3, MinIO or versitygw"
        case _:
            said = str(error.response.get("Error", {}).get("Message", "")) or "no reason"
            wrong = f"the S3 server answered {code or status}: {said.rstrip('.')}"
            if status >= 500 or code in ("SlowDown", "Throttling"):
                return Unreachable(wrong, where=url, do="Try again later")
            return StoreFailed(wrong, where=url, do=f"Check that {endpoint or 'AWS'} is an S3 server, then try again")
    return ConfigError(wrong, where=url, do=do)


def _plain(error: Exception) -> str:
    said = str(error) or type(error).__name__
    if isinstance(error, ParamValidationError):
        said = said.splitlines()[-1].partition(":")[0]  # what follows are the rules as regular expressions
    return " ".join(said.split()).rstrip(".")
