"""What a stream's URL says: kinesis://NAME?region=…&endpoint=…. Credentials have no place in it."""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from sparring.errors import ConfigError

SETTING = "[stream] url"
OPTIONS = ("region", "endpoint")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True)
class KinesisAddress:
    """One stream. `setting` is where a person wrote the URL; errors name it."""

    name: str
    region: str = ""  # "": as AWS_REGION or the profile says
    endpoint: str = ""  # "": Amazon's own
    setting: str = SETTING

    @classmethod
    def read(cls, url: str, setting: str = SETTING) -> "KinesisAddress":
        """The address in `url`; ConfigError with the right form where it is none. A password in it is not repeated."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            do = "Leave them out: they come from the environment, a profile or the machine's role"
            raise ConfigError("it holds credentials", where=setting, do=do)
        if parts.scheme != "kinesis" or parts.path not in ("", "/") or not _NAME.fullmatch(parts.netloc):
            raise ConfigError(f"{url!r} names no stream", where=setting, do="Write kinesis://NAME?region=…&endpoint=…")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise ConfigError(f"unknown option {unknown[0]!r} in it", where=setting, do=f"Use {' and '.join(OPTIONS)}")
        endpoint = options.get("endpoint", "").rstrip("/")
        if endpoint and not re.fullmatch(r"https?://[^\s/?#@]+", endpoint):
            do = "Write endpoint=http://HOST:PORT, or leave it out for Amazon's own"
            raise ConfigError(f"endpoint={endpoint!r} is no address", where=setting, do=do)
        return cls(parts.netloc, options.get("region", ""), endpoint, setting)

    @property
    def where(self) -> str:
        """For the head of an error: which setting, and which stream."""
        return f"{self.setting} (kinesis://{self.name})"

    @property
    def place(self) -> str:
        """Who should answer, in words."""
        return self.endpoint or (f"Kinesis in {self.region}" if self.region else "Kinesis")
