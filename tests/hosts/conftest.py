"""Fixtures that several files here use."""

from moto_cloud import cloud, moto_url

__all__ = ["cloud", "moto_url"]
