"""Models in a folder: one folder for each, named by its id, and the champion log beside them.

    <id>/card.json, weights.safetensors, model.onnx     never changed once there
    evidence/<id>.json                                  the model's newest evaluation
    champions/…                                         see champions/log.py
    signing.key (0600), trust                           see signing_key.py

No file stays open: any number of processes may read and publish at once.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
from sparring.registry.cards import CARD, ID, check_whole, gone
from sparring.registry.champions.rules import DAY_S
from sparring.registry.protocol import ListedObject
from sparring.registry.registry import Registry
from sparring.registry.signing_key import SigningKey
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

log = logging.getLogger(__name__)


class Folder:
    """Objects as files under `root`; see `protocol.Objects`."""

    def __init__(self, root: Path) -> None:
        self.root = root

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
            replace_file(self._with_folder(key), content)

    def put_new(self, key: str, content: bytes) -> bool:
        try:
            with disk_errors(self.root / key):
                create_file(self._with_folder(key), content)
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
    """A registry in the folder `root`. `clock` gives Unix seconds."""

    def __init__(
        self,
        root: Path,
        *,
        champion_days: float = 7.0,
        rollout_share: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            remove_drafts(root, DAY_S, clock())
        folder = Folder(root)
        key = SigningKey(folder, root / "signing.key")
        super().__init__(
            folder, key, champion_days=champion_days, rollout_share=rollout_share, fresh_s=0.0, clock=clock
        )

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

    def _read(self, model: ModelId, name: str) -> bytes:
        if (
            name == CARD
            and ID.match(model)
            and not (self.root / model / CARD).exists()
            and (self.root / model).is_dir()
        ):
            raise gone(model, name)
        return super()._read(model, name)
