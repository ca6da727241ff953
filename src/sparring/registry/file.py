"""Models in a folder: one folder for each, named by its id, and the champion log beside them.

    <id>/card.json, weights.safetensors, model.onnx     never changed once there
    evidence/<id>.json                                  the model's newest evaluation
    champions/…                                         see champions.py
    strengths/<game>/<version>.json                     the ladder of strengths, signed
    signing.key (0600), trust                           see champions.py

No file stays open: any number of processes may read and publish at once.
"""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparring.durable import (
    DRAFT,
    create_file,
    disk_errors,
    make_folders,
    publish_folder,
    read_inside,
    remove_drafts,
    replace_file,
)
from sparring.errors import ModelDamaged
from sparring.registry.champions import SigningKey
from sparring.registry.protocol import ListedObject
from sparring.registry.registry import CARD, DAY_S, ID, Registry, check_whole
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

log = logging.getLogger(__name__)


class Folder:
    """Objects as files under `root`; see `protocol.Objects`."""

    def __init__(self, root: Path, mode: int = 0o644) -> None:
        self.root, self._mode = root, mode

    def __str__(self) -> str:
        return str(self.root)

    def get(self, key: str, max_bytes: int) -> bytes | None:
        path = self.root / key
        try:
            return read_inside(path.parent, path.name, max_bytes)
        except FileNotFoundError:
            return None

    def put(self, key: str, content: bytes) -> None:
        with disk_errors(self.root / key):
            replace_file(self._with_folder(key), content, self._mode)

    def put_new(self, key: str, content: bytes) -> bool:
        try:
            with disk_errors(self.root / key):
                create_file(self._with_folder(key), content, self._mode)
        except FileExistsError:
            return False
        return True

    def list(self, prefix: str, limit: int | None = None) -> Iterator[ListedObject]:
        try:
            names = sorted(name for name in os.listdir(self.root / prefix) if not name.startswith(DRAFT))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names[:limit]:
            about = (self.root / prefix / name).lstat()
            yield ListedObject(prefix + name, f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}")

    def close(self) -> None:
        return None

    def _with_folder(self, key: str) -> Path:
        path = self.root / key
        make_folders(path.parent, self.root)
        return path


class FileRegistry(Registry):
    """A registry in the folder `root`."""

    def __init__(self, root: Path, **settings: Any) -> None:
        """`settings` are those of `Registry`."""
        self.root, folder = root, Folder(root)
        super().__init__(folder, SigningKey(folder, root / "signing.key"), 0.0, **settings)
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            remove_drafts(root, DAY_S, self._clock())

    def publish(self, model: Model) -> ModelId:
        """A whole model stays as it is; a damaged one is moved aside and written again."""
        files = {CARD: check_whole(model), **model.files}
        folder = self.root / model.id
        with disk_errors(folder):
            if not publish_folder(folder, files):
                try:
                    self.fetch(model.id)
                except ModelDamaged as error:
                    log.warning("published again over a damaged one: %s", error)
                    folder.rename(self.root / f".damaged-{model.id}-{time.time_ns()}")
                    publish_folder(folder, files)
        return model.id

    def ids(self) -> list[ModelId]:
        return sorted(ModelId(entry.name) for entry in os.scandir(self.root) if ID.match(entry.name))

    def link(self, model: ModelId, name: str) -> str | None:
        """None: this process alone reads the folder."""
        return None

    def _is_begun(self, model: ModelId) -> bool:
        return (self.root / model).is_dir() and not (self.root / model / CARD).exists()
