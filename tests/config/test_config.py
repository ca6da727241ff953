"""spar.toml: what is read, what is refused and in which words, and that every key is documented."""

import json
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from docs.reference import DOCS, settings_page

from sparring.cli import main
from sparring.config import DATA_FORMAT, Config, check_data_folder, load, open_data_folder
from sparring.errors import ConfigError


def settings(cls: type = Config, prefix: str = "") -> list[tuple[str, str, Any]]:
    """Every key as (path, type, default), in the order of declaration."""
    rows: list[tuple[str, str, Any]] = []
    kinds = get_type_hints(cls)
    for item in fields(cls):
        kind = kinds[item.name]
        if is_dataclass(kind):
            rows += settings(kind, f"{prefix}{item.name}.")
        elif item.metadata.get("setting", True):
            rows.append((prefix + item.name, str(getattr(kind, "__name__", kind)), item.default))
    return rows


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    file = tmp_path / "spar.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file, overrides)
    return str(error.value).replace(f"{tmp_path}/", "")


def test_without_a_file_every_key_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load()
    assert config.gateway.port == 8700
    assert config.store_url == f"sqlite:///{tmp_path}/data/experience.db"


def test_a_file_and_set_override_in_that_order(tmp_path: Path) -> None:
    (tmp_path / "spar.toml").write_text("[gateway]\nport = 1\nhost = '::1'\n")
    config = load(tmp_path / "spar.toml", ("gateway.port=2", "store.url=sqlite:////elsewhere.db"))
    assert (config.gateway.port, config.gateway.host) == (2, "::1")
    assert config.store_url == "sqlite:////elsewhere.db"


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[replay]\nsamples_per_insrt = 3") == (
        "spar.toml [replay]: unknown key 'samples_per_insrt'. Did you mean 'samples_per_insert'?"
    )
    assert refusal(tmp_path, "[collect]\nxyzzy = 3") == (
        "spar.toml [collect]: unknown key 'xyzzy'. The keys here are budget_steps_per_s, window_s."
    )


def test_a_value_of_another_type_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[gateway]\nport = 'x'") == (
        "spar.toml [gateway]: port = 'x' should be int, not str. Correct the value."
    )
    assert refusal(tmp_path, "gateway = 3") == "spar.toml: gateway = 3. Write a table: [gateway]."
    assert refusal(tmp_path, "games = 'a'") == "spar.toml: games = 'a'. Write a list of strings."
    assert refusal(tmp_path, "", "gateway.port") == "--set: 'gateway.port' has no value. Write --set section.key=value."
    assert refusal(tmp_path, "", "gateway=3", "gateway.port=4").startswith("--set: gateway = 3 is no section.")
    assert refusal(tmp_path, "[").startswith("spar.toml: it is not TOML: ")


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "absent.toml")


def test_an_effective_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().gateway.port = 3  # type: ignore[misc]


def test_the_page_of_settings_is_what_the_code_says() -> None:
    assert (DOCS / "settings.md").read_text() == settings_page(), "run `make docs`"


@pytest.mark.parametrize("key", [key for key, _, _ in settings()])
def test_every_key_is_explained(key: str) -> None:
    row = re.search(rf"^\| `{re.escape(key)}` \| .* \| (.+) \|$", settings_page(), re.M)
    assert row, f"docs/settings.md does not explain {key}"
    assert len(row.group(1)) > 10


UNITS = re.compile(
    r"(_s|_ms|_days|_bytes|_share|_chunks|_steps|_episodes|_requests|_samples|_threads|_ticks|_staleness|_norm|_factor|_momentum|_exponent|_per_\w+|port|envs|actors|learners|shards|opponents|connections|reward_clip)$"
)


@pytest.mark.parametrize("key", [key for key, kind, _ in settings() if kind in ("int", "float")])
def test_every_number_carries_its_unit(key: str) -> None:
    assert UNITS.search(key), f"{key}: end its name in a unit"


def test_a_new_data_folder_says_its_format_and_is_opened_again(tmp_path):
    folder = tmp_path / "data"
    assert check_data_folder(folder) is False
    open_data_folder(folder)
    assert json.loads((folder / "format.json").read_bytes()) == {"format": DATA_FORMAT}
    open_data_folder(folder)
    assert check_data_folder(folder) is True


@pytest.mark.parametrize(("content", "found"), [(None, "1"), ('{"format": 99}', "99"), ("{", "unknown")])
def test_a_data_folder_of_another_version_is_refused_with_what_to_do(tmp_path, content, found):
    (tmp_path / "identity.key").touch()
    if content is not None:
        (tmp_path / "format.json").write_text(content)
    with pytest.raises(ConfigError) as error:
        open_data_folder(tmp_path)
    assert str(error.value) == (
        f"data folder {tmp_path}: its format is {found}, and this Sparring reads {DATA_FORMAT}. "
        "Name a new folder with --data, or use the version of Sparring that made this one."
    )
    assert main(["data", "stats", "--data", str(tmp_path)]) == 1
