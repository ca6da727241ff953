"""Backups of the cloud path (docs/deploy.md): Cassandra's rows by an export, a bucket's models by a copy."""

import os
import time

import boto3
import pytest

from client.served_models import always, promote
from servers.aws_servers import S3
from servers.cassandra_cluster import Cassandra
from sink.flow import episodes, judged, spar
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.wire.champion import verify

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.usefixtures("local_credentials")]


def test_rows_of_cassandra_come_back_from_an_export(tmp_path, cassandra_server: Cassandra):
    lost, new = (cassandra_server.url(f"{name}{time.time_ns()}") for name in ("lost", "new"))
    sent = [chunk for episode in episodes(5, 4) for chunk in episode]
    for url in (lost, new):
        spar(tmp_path, "store", "migrate", "--set", f"store.url={url}")
    with open_store(lost) as store:
        store.append(sent)
    file = str(tmp_path / "cartpole.parquet")
    spar(tmp_path, "data", "export", "cartpole", "--to", file, "--set", f"store.url={lost}")
    spar(tmp_path, "data", "import", file, "--set", f"store.url={new}")
    found = judged(new, sent)
    assert found.exact
    assert found.steps == sum(chunk.header.steps for chunk in sent)


def test_models_and_the_champion_of_a_bucket_come_back_from_a_copy(tmp_path, s3_server: S3):
    bucket = f"backup-{os.getpid()}"
    client = boto3.client("s3", endpoint_url=s3_server.endpoint)
    client.create_bucket(Bucket=bucket)
    urls = {name: s3_server.url(bucket, name) for name in ("models", "copy", "again")}
    key = f"&key={tmp_path / 'models' / 'signing.key'}"
    with open_registry(urls["models"] + key) as registry:
        for action in (0, 1):
            model = always(action)
            promote(registry, model)
        before, trust = verify(registry.champion(model.card.game, "1"), registry.trust), registry.trust
    for source, target in (("models", "copy"), ("copy", "again")):  # there, and after the loss back again
        spar(tmp_path, "models", "copy", "--to", urls[target], "--set", f"registry.url={urls[source]}")
    with open_registry(urls["again"] + key) as registry:
        assert registry.trust == trust
        champion = verify(registry.champion(model.card.game, "1"), trust)
        assert (champion.model, champion.spec) == (before.model, before.spec)
        assert champion.counter > before.counter, "clients that have seen the old one take it"
        assert registry.fetch(model.id).files == model.files
    client.close()
