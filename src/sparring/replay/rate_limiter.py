"""How fast steps may come and go: samples per insert held near a ratio by making the faster side wait.

`python -m sparring.replay.rate_limiter` prints one at work.
"""

from dataclasses import dataclass

from sparring.errors import ConfigError


@dataclass(slots=True)
class RateLimiter:
    """Lets inserts and samples through; neither side can leave the other behind by more than the slack."""

    samples_per_insert: float
    min_steps: int  # nothing is sampled before this many steps have arrived
    slack_samples: float  # how far the two may drift apart before one side waits
    inserted: int = 0
    sampled: int = 0

    def may_insert(self, steps: int) -> bool:
        """Whether `steps` more may arrive now."""
        return self.inserted < self.min_steps or self.owed() + self.samples_per_insert * steps <= self.slack_samples

    def may_sample(self, steps: int) -> bool:
        """Whether `steps` may be sampled now."""
        return self.inserted >= self.min_steps and self.owed() - steps >= -self.slack_samples

    def owed(self) -> float:
        """Samples that the ratio allows and that were not taken yet; negative where sampling is ahead."""
        return self.samples_per_insert * (self.inserted - self.min_steps) - self.sampled

    def insert(self, steps: int) -> None:
        """Count steps that arrived."""
        self.inserted += steps

    def sample(self, steps: int) -> None:
        """Count steps that were sampled."""
        self.sampled += steps

    def flow(self) -> dict[str, float]:
        """Where the two sides stand."""
        return {"inserted": self.inserted, "sampled": self.sampled, "owed": self.owed(), "slack": self.slack_samples}


def open_rate_limiter(
    samples_per_insert: float, min_steps: int, slack_samples: float, *, insert_steps: int, batch_steps: int
) -> RateLimiter:
    """A rate limiter for inserts and batches of these sizes; ConfigError where both sides could wait for ever.

    Both wait when owed > slack − ratio·insert and owed < batch − slack. That cannot be when
    2·slack ≥ ratio·insert + batch; and what overshoots min_steps by one insert must still fit.
    """
    if samples_per_insert <= 0 or min_steps < 1:
        raise ConfigError(
            f"samples_per_insert = {samples_per_insert} and min_steps = {min_steps}",
            where="[replay]",
            do="Give both a positive value",
        )
    least = (samples_per_insert * insert_steps + batch_steps) / 2
    if slack_samples < least:
        raise ConfigError(
            f"slack_samples = {slack_samples:g} can block both sides for ever with inserts of {insert_steps} "
            f"and batches of {batch_steps}",
            where="[replay]",
            do=f"Set it to {least:g} or more",
        )
    return RateLimiter(samples_per_insert, min_steps, slack_samples)


if __name__ == "__main__":
    import sys

    limiter = open_rate_limiter(8.0, 100, 1000.0, insert_steps=16, batch_steps=256)
    for turn in range(12):
        can_insert, can_sample = limiter.may_insert(16), limiter.may_sample(256)
        line = f"{turn:3} insert {can_insert!s:5} sample {can_sample!s:5} {limiter.flow()}\n"
        sys.stdout.write(line)
        limiter.sample(256) if can_sample else limiter.insert(16)
