"""Objects under one prefix of an S3 bucket: read whole, written whole, and on condition that nothing is there yet.

Every failure is one sentence that names the setting to change. Credentials come from boto3's own chain
(environment, profile, role) and are never part of the address.
"""

import base64
import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import botocore.loaders
import botocore.session
from boto3.session import Session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sparring import aws
from sparring.aws import AwsAddress, code_of
from sparring.errors import ConfigError, ModelDamaged
from sparring.registry.protocol import ListedObject
from sparring.urls import read_url

PART_BYTES = 8 << 20
ALONE_BYTES = 16 << 20  # up to here one request carries the whole object
PARTS_AT_ONCE = 4
STALE_UPLOAD_S = 86_400.0
# The condition of a put does not hold; AWS says 409 where two conditional puts meet, and a repeated completion finds
# its upload gone.
TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "NoSuchUpload")
READ_TRIES = 3
_LOADER = botocore.loaders.create_loader()  # what S3 can do, read from disk once: a tenth of a second each time else

_OPTIONS = aws.OPTIONS | {
    "public": ("[01]", "public=1 or public=0"),
    "key": (".*", "a file"),
    "fresh_s": (r"\d{1,4}(\.\d{1,3})?", "seconds, such as 1 or 0.5"),
}
_ACTIONS = {
    "ListObjectsV2": "ListBucket",
    **dict.fromkeys(("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "PutObject"),
    "ListMultipartUploads": "ListBucketMultipartUploads",
}
_ELSEWHERE = ConfigError, "the bucket is in another region", "Set region= in {setting} to the bucket's own"
_REFUSALS: dict[str, aws.Refusal] = {
    "NoSuchBucket": (ConfigError, "there is no such bucket", "Create it, or check its name and endpoint= in {setting}"),
    **dict.fromkeys(("PermanentRedirect", "301", "AuthorizationHeaderMalformed"), _ELSEWHERE),
    "NotImplemented": (ConfigError, "this server has no {called}", "Use AWS S3, MinIO or versitygw"),
}

logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials, each time


@dataclass(frozen=True, slots=True)
class Address(AwsAddress):
    """What an s3:// URL says."""

    bucket: str
    prefix: str  # "" or ends with a slash
    public: bool = False  # models are read by everybody, without a signature
    key: str = ""  # the file of the key that signs champions here
    fresh_s: float = 1.0  # for so many seconds a champion may be answered from memory

    service = "S3"
    policy_page = "docs/models.md"
    actions = _ACTIONS
    refusals = _REFUSALS

    @classmethod
    def read(cls, url: str, setting: str = "registry.url") -> "Address":
        """The address in `url`; ConfigError with the right form where it is none."""
        parts, said = read_url(url, setting, "[^/]+(/.*)?", "s3://BUCKET/PREFIX", aws.SECRETS, _OPTIONS)
        prefix = parts.path.strip("/")
        return cls(
            bucket=parts.netloc,
            prefix=f"{prefix}/" if prefix else "",
            endpoint=said.get("endpoint", ""),
            region=said.get("region", ""),
            public=said.get("public") == "1",
            key=said.get("key", ""),
            fresh_s=float(said.get("fresh_s", "1")),
            setting=setting,
        )

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class Bucket:
    """Safe to call from several threads. Keys are relative to the address's prefix."""

    def __init__(self, address: Address) -> None:
        self.address = address
        with self._sentences():
            described = botocore.session.Session()
            described.register_component("data_loader", _LOADER)
            self._session = Session(region_name=address.region or None, botocore_session=described)
            # Opening asks once with short timeouts, so that a wrong setting is reported within seconds.
            quick = self._client(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 2})
            try:
                quick.list_objects_v2(Bucket=address.bucket, Prefix=address.prefix, MaxKeys=1)
            finally:
                quick.close()
            self._s3 = self._client(connect_timeout=4, read_timeout=60, retries={"total_max_attempts": 4})
            self._link_client = self._client(signature_version=UNSIGNED) if address.public else self._s3

    def __str__(self) -> str:
        return str(self.address)

    def close(self) -> None:
        """Release the connections."""
        self._s3.close()

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """The object, whole; None where there is none; ModelDamaged where it is larger."""
        with self._sentences("NoSuchKey", "404"):
            for tries_left in reversed(range(READ_TRIES)):
                try:
                    answer = self._s3.get_object(**self._at(key))
                    if answer["ContentLength"] > max_bytes:
                        wrong = f"it is larger than {max_bytes} bytes"
                        raise ModelDamaged(wrong, where=f"{self.address}/{key}", do="Remove it")
                    content: bytes = answer["Body"].read()
                    return content
                except BotoCoreError:  # botocore itself does not try again when a body breaks off
                    if not tries_left:
                        raise
        return None

    def put(self, key: str, content: bytes) -> None:
        """Store `content` under the key, in place of what was there."""
        self._put(key, content, {})

    def put_new(self, key: str, content: bytes) -> bool:
        """Store `content` where there is nothing yet. False where there is, which stays.

        After a lost answer it may be this very content: a caller who must know compares.
        """
        return self._put(key, content, {"IfNoneMatch": "*"})

    def list(self, prefix: str, limit: int | None = None) -> Iterator[ListedObject]:
        """What begins with `prefix`, in the order of its bytes; at most `limit`."""
        token: dict[str, str] = {}
        while True:
            page = self._call(
                "list_objects_v2",
                Bucket=self.address.bucket,
                Prefix=self.address.prefix + prefix,
                MaxKeys=min(limit or 1000, 1000),
                **token,
            )
            for item in page.get("Contents", ()):
                yield ListedObject(item["Key"].removeprefix(self.address.prefix), item["ETag"])
            if limit is not None or not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def link(self, key: str, seconds: int) -> str:
        """An address that anyone can download from: for so many seconds, or for good where the bucket is public."""
        with self._sentences():
            made: str = self._link_client.generate_presigned_url("get_object", Params=self._at(key), ExpiresIn=seconds)
            return made

    def share(self, prefix: str, yes: bool) -> None:
        """Let everybody read what begins with `prefix`, or no longer. Other statements of the policy stay."""
        name = "SparringModels" + hashlib.sha256(f"{self.address.prefix}{prefix}".encode()).hexdigest()[:12]
        policy: dict[str, Any] = {"Version": "2012-10-17", "Statement": []}
        with self._sentences("NoSuchBucketPolicy"):
            policy = json.loads(self._s3.get_bucket_policy(Bucket=self.address.bucket)["Policy"])
        others = [said for said in policy["Statement"] if said.get("Sid") != name]
        ours = {
            "Sid": name,
            "Effect": "Allow",
            "Principal": "*",
            "Action": "s3:GetObject",
            "Resource": f"arn:aws:s3:::{self.address.bucket}/{self.address.prefix}{prefix}*",
        }
        policy["Statement"] = [*others, ours] if yes else others
        if policy["Statement"]:
            self._call("put_bucket_policy", Bucket=self.address.bucket, Policy=json.dumps(policy))
        else:
            self._call("delete_bucket_policy", Bucket=self.address.bucket)

    def abandon_uploads(self, prefix: str, now_s: float) -> None:
        """Take back the parts that killed writers left a day ago or earlier: they cost money and are seen nowhere."""
        where = {"Bucket": self.address.bucket}
        for upload in self._call("list_multipart_uploads", **where, Prefix=self.address.prefix + prefix).get(
            "Uploads", ()
        ):
            if now_s - upload["Initiated"].timestamp() > STALE_UPLOAD_S:
                self._call("abort_multipart_upload", **where, Key=upload["Key"], UploadId=upload["UploadId"])

    def _put(self, key: str, content: bytes, condition: dict[str, str]) -> bool:
        """False where the condition does not hold."""
        done = False
        with self._sentences(*(TAKEN if condition else ())):
            if len(content) <= ALONE_BYTES:
                self._s3.put_object(**self._at(key), Body=content, ContentMD5=_md5(content), **condition)
            else:
                self._put_in_parts(key, content, condition)
            done = True
        return done

    def _put_in_parts(self, key: str, content: bytes, condition: dict[str, str]) -> None:
        at = self._at(key)
        upload = {**at, "UploadId": self._s3.create_multipart_upload(**at)["UploadId"]}
        view = memoryview(content)

        def send(number: int) -> dict[str, Any]:
            part = bytes(view[(number - 1) * PART_BYTES : number * PART_BYTES])
            sent = self._s3.upload_part(**upload, PartNumber=number, Body=part, ContentMD5=_md5(part))
            return {"PartNumber": number, "ETag": sent["ETag"]}

        try:
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                parts = list(pool.map(send, range(1, -(-len(content) // PART_BYTES) + 1)))
            self._s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                self._s3.abort_multipart_upload(**upload)
            raise

    def _client(self, **settings: Any) -> Any:
        style = {"addressing_style": "path" if self.address.endpoint else "auto"}
        # Content-MD5 is ours and every server knows it; boto3's newer checksums are refused by some.
        config = Config(
            signature_version=settings.pop("signature_version", "s3v4"),
            s3=style,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **settings,
        )
        return self._session.client("s3", endpoint_url=self.address.endpoint or None, config=config)

    def _call(self, verb: str, **what: Any) -> Any:
        with self._sentences():
            return getattr(self._s3, verb)(**what)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.address.bucket, "Key": self.address.prefix + key}

    @contextlib.contextmanager
    def _sentences(self, *expected: str) -> Iterator[None]:
        """Turn what S3 and boto3 raise into one sentence; the block ends without an error at the `expected` codes."""
        try:
            yield
        except (BotoCoreError, ClientError, ValueError) as error:
            if code_of(error) not in expected:
                raise aws.explain(error, self.address) from None


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
