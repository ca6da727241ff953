"""What lies in the tests' bucket, past the registry."""

from sparring.registry.s3.bucket import Address

BUCKET = "registry"


class Objects:
    """The objects under one registry's prefix."""

    def __init__(self, client, url):
        self.client, self.prefix = client, Address.read(url).prefix

    def keys(self, within=""):
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix + within).get("Contents", ())
        return [item["Key"].removeprefix(self.prefix) for item in found]

    def get(self, key):
        return self.client.get_object(Bucket=BUCKET, Key=self.prefix + key)["Body"].read()

    def put(self, key, content):
        self.client.put_object(Bucket=BUCKET, Key=self.prefix + key, Body=content)

    def delete(self, key):
        self.client.delete_object(Bucket=BUCKET, Key=self.prefix + key)


def through(url, endpoint):
    """The same registry, by way of another endpoint."""
    return url.replace(Address.read(url).endpoint, endpoint)
