"""A video of games, written picture by picture: .mp4 by ffmpeg, .gif by Pillow, both through imageio."""

import importlib.util
from pathlib import Path
from typing import Any, Self

import numpy as np

from sparring.durable import disk_errors
from sparring.errors import ConfigError, Missing
from sparring.wire.chunk import Array

FORMATS = (".mp4", ".gif")


def check_video(path: Path) -> None:
    """ConfigError or Missing where no video can be written there."""
    if path.suffix.lower() not in FORMATS or not path.parent.is_dir():
        do = f"End its name with {' or '.join(FORMATS)}, in a folder that exists"
        raise ConfigError(f"no video can be written as {path.name!r}", where=str(path), do=do)
    for package in ("imageio", "imageio_ffmpeg"):
        if importlib.util.find_spec(package) is None:
            do = "Install it: pip install 'sparring[video]'"
            raise Missing(f"the package {package} is not installed", where="--video", do=do)


class VideoFile:
    """A context manager; what was added is in the file once it is left."""

    def __init__(self, path: Path, frames_per_s: float) -> None:
        check_video(path)
        import imageio.v2 as imageio

        if path.suffix.lower() == ".gif":
            options: dict[str, Any] = {"mode": "I", "duration": 1000 / frames_per_s, "loop": 0}
        else:
            options = {"fps": frames_per_s, "macro_block_size": 1, "quality": 8}
        with disk_errors(path):
            self._writer = imageio.get_writer(path, **options)

    def add(self, picture: Array) -> None:
        """uint8 [height, width, 3]; mp4 takes even sizes alone, so an odd one loses its last row or column."""
        height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2
        self._writer.append_data(np.ascontiguousarray(picture[:height, :width, :3]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
