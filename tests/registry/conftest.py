"""A place of one's own in a bucket of the run's S3 server."""

import uuid

import boto3
import pytest
from buckets import BUCKET, Objects


@pytest.fixture
def s3_client(s3_server, local_credentials):
    """The server as boto3 speaks to it, with the bucket there."""
    client = boto3.session.Session().client("s3", endpoint_url=s3_server.endpoint)
    if BUCKET not in {bucket["Name"] for bucket in client.list_buckets().get("Buckets", ())}:
        client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()


@pytest.fixture
def bucket_url(s3_server, s3_client, tmp_path):
    """A registry's URL that no other test has; the key that signs is this test's own."""
    prefix = f"test/{uuid.uuid4().hex}"
    return f"{s3_server.url(BUCKET, prefix)}&fresh_s=0&key={tmp_path}/models/signing.key"


@pytest.fixture
def objects(s3_client, bucket_url):
    """What lies there, past the registry."""
    return Objects(s3_client, bucket_url)
