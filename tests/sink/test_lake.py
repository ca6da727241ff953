"""Parquet on a real S3 server, beside the store."""

import os
from contextlib import closing
from pathlib import Path

import boto3
import pytest

from derived import chunks_of, differences
from servers.aws_servers import S3
from sink.flow import episodes
from sparring.errors import ConfigError
from sparring.sink.batch_writer import Lake
from sparring.store.exchange import parquet
from sparring.wire.chunk import Chunk, Encoded, encode, read_header

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("local_credentials")]


def encoded(chunks: list[Chunk]) -> list[Encoded]:
    return [read_header(encode(chunk)) for chunk in chunks]


def test_a_batch_that_is_done_again_replaces_its_own_files(tmp_path: Path, s3_server: S3) -> None:
    client = boto3.client("s3", endpoint_url=s3_server.endpoint)
    bucket = f"lake-of-batches-{os.getpid()}"
    client.create_bucket(Bucket=bucket)
    sent = [chunk for episode in episodes(2, 3) for chunk in episode]
    with closing(Lake(s3_server.url(bucket, "plays"))) as lake:
        lake.write("shard-0@", encoded(sent[:9]))
        lake.write("shard-0@", encoded(sent))
        lake.write("shard-0@17", encoded(chunks_of(3, 1, 1)))
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]]
    folder = "plays/game=cartpole/version=1/seat=0/day=2025-06-15"
    assert keys == [f"{folder}/shard-0@.parquet", f"{folder}/shard-0@17.parquet"]
    file = tmp_path / "batch.parquet"
    file.write_bytes(client.get_object(Bucket=bucket, Key=keys[0])["Body"].read())
    client.close()
    found = list(parquet.read(file))
    in_order = sorted((chunk.key for chunk in sent), key=lambda key: (key.episode, key.first_step))
    assert [chunk.key for chunk in found] == in_order
    assert not any(differences(chunk) or chunk.header.player for chunk in found)


def test_a_bucket_that_is_not_there_is_said_with_its_setting(s3_server: S3) -> None:
    with pytest.raises(ConfigError, match=r"there is no such bucket.*sink\.lake_url"):
        Lake(s3_server.url("nowhere", "plays"))
