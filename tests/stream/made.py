"""A stream for one test, on a server that many tests share."""

import secrets

import boto3

from servers.aws_servers import Kinesis


def make(server: Kinesis, shards: int) -> str:
    """A new stream there; its URL once it is active."""
    name = f"plays-{secrets.token_hex(6)}"
    client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1")
    client.create_stream(StreamName=name, ShardCount=shards)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    client.close()
    return server.url(name)
