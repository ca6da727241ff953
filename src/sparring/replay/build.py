"""A table by the names in spar.toml: sampler x remover x capacity."""

from collections.abc import Mapping

from sparring.config import ReplayConfig
from sparring.errors import ConfigError
from sparring.games.spec import SeatSpec
from sparring.replay.remover import Fifo, LowestPriority, Remover
from sparring.replay.rows import row_layout
from sparring.replay.sampler import ByEpisode, BySource, Newest, Prioritised, Sampler, Uniform
from sparring.replay.steps import SOURCES
from sparring.replay.table import Table


def open_table(
    seat: SeatSpec,
    config: ReplayConfig,
    *,
    streams: int,
    masks: bool,
    frame_stack: int = 1,
    state_numbers: int = 0,
) -> Table:
    """The table that `config` describes; ConfigError where its parts do not go together.

    `state_numbers` is how many a memory holds at a step (`wire.network.state_width`), 0 without one.
    """
    _check_numbers(config)
    rows = capacity(seat, config, masks=masks, state_numbers=state_numbers)
    return Table(
        seat,
        rows,
        streams=streams,
        masks=masks,
        sampler=_sampler(config, rows),
        remover=_remover(config, rows),
        frame_stack=frame_stack,
        uploader_share=config.uploader_share,
        state_numbers=state_numbers,
    )


def capacity(seat: SeatSpec, config: ReplayConfig, *, masks: bool, state_numbers: int = 0) -> int:
    """Rows that fit both limits."""
    if not config.capacity_bytes:
        return config.capacity_steps
    size = row_layout(seat, masks=masks, state_numbers=state_numbers).itemsize
    if config.capacity_bytes < 2 * size:
        raise ConfigError(
            f"capacity_bytes = {config.capacity_bytes}, and one step takes {size}",
            where="[replay]",
            do="Give it room for some thousands of steps, or set 0 to count steps alone",
        )
    return min(config.capacity_steps, config.capacity_bytes // size)


def _check_numbers(config: ReplayConfig) -> None:
    if not 0.0 < config.uploader_share <= 1.0:
        raise ConfigError(
            f"uploader_share = {config.uploader_share:g}", where="[replay]", do="Set it above 0, and to 1 at most"
        )
    if config.capacity_steps < 2 or config.importance_samples < 0:
        raise ConfigError(
            f"capacity_steps = {config.capacity_steps}, importance_samples = {config.importance_samples}",
            where="[replay]",
            do="Hold at least 2 steps, better some thousands, and count samples from 0",
        )
    if not (0.0 <= config.priority_exponent <= 1.0 and 0.0 <= config.importance_exponent <= 1.0):
        raise ConfigError(
            f"priority_exponent = {config.priority_exponent:g}, importance_exponent = {config.importance_exponent:g}",
            where="[replay]",
            do="Set both between 0 and 1",
        )


def source_shares(config: ReplayConfig) -> Mapping[int, float]:
    """`replay.source_shares` by the numbers of the sources; all the same where it is empty."""
    if not config.source_shares:
        return dict.fromkeys(range(len(SOURCES)), 1.0)
    shares: dict[int, float] = {}
    for text in config.source_shares:
        name, _, number = text.partition("=")
        try:
            shares[SOURCES.index(name.strip())] = share = float(number)
        except ValueError:
            share = 0.0
        if not 0.0 < share < float("inf"):
            raise ConfigError(
                f"source_shares holds {text!r}",
                where="[replay]",
                do=f'Write "play=0.5"; the sources are {", ".join(SOURCES)}',
            )
    return shares


def check_sources(config: ReplayConfig, *, records: bool) -> None:
    """ConfigError where nothing that comes could be drawn: then the learner would wait for ever at the gate.

    `records`: the store's come too. Otherwise all that comes is played by the run itself.
    """
    if config.sampler == "by-source" and not records and SOURCES.index("selfplay") not in source_shares(config):
        raise ConfigError(
            f"source_shares = {list(config.source_shares)} leaves out selfplay, and nothing else comes",
            where="[replay]",
            do="Give selfplay a share, or learn with --from mix",
        )


def _sampler(config: ReplayConfig, rows: int) -> Sampler:
    match config.sampler:
        case "uniform":
            return Uniform(rows)
        case "prioritised":
            return Prioritised(rows, config.priority_exponent, config.importance_exponent, config.importance_samples)
        case "newest":
            return Newest(rows)
        case "by-episode":
            return ByEpisode(rows)
        case "by-source":
            return BySource(rows, source_shares(config))


def _remover(config: ReplayConfig, rows: int) -> Remover:
    if config.remover == "fifo":
        return Fifo(rows)
    if config.sampler != "prioritised":
        raise ConfigError(
            f"remover = 'lowest-priority' with sampler = {config.sampler!r}, which has no priorities",
            where="[replay]",
            do="Use sampler = 'prioritised', or remover = 'fifo'",
        )
    return LowestPriority(rows)
