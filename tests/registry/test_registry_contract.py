"""What every registry must do; a backend is added to `registry` and nowhere else."""

import threading

import msgspec
import pytest
from small_models import small_model

from sparring.errors import ConfigError, Missing, ModelDamaged, Refused
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import canonical, for_client, verify
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import WEIGHTS, Card, Model

GAME = GameId("cartpole")
EVIDENCE = Evidence(episodes=200, mean=480.0, sd=20.0)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.servers)])
def url(request, tmp_path):
    return f"file://{tmp_path}/models" if request.param == "file" else request.getfixturevalue("bucket_url")


@pytest.fixture
def registry(url):
    with open_registry(url) as opened:
        yield opened


def test_a_model_comes_back_exactly(registry):
    model = small_model()
    assert registry.publish(model) == model.id
    assert registry.fetch(model.id) == model
    assert registry.file(model.id, "card.json") == canonical(model.card)
    assert registry.file(model.id, WEIGHTS) == model.files[WEIGHTS]


def test_publishing_again_changes_nothing(registry):
    model = small_model()
    for _ in range(3):
        assert registry.publish(model) == model.id
    assert [listed.card.id for listed in registry.models(GAME)] == [model.id]


def test_what_is_not_there_is_missing_and_nothing_else_is_given_instead(registry):
    registry.publish(small_model())
    other = small_model(1)
    with pytest.raises(Missing) as caught:
        registry.fetch(other.id)
    assert str(caught.value) == (
        f"model {other.id[:12]}: there is no such model here. `spar models list` shows those that are."
    )
    with pytest.raises(Missing, match=r"it has no file 'secret'\. Ask for model.onnx, weights.safetensors"):
        registry.file(small_model().id, "secret")
    with pytest.raises(Missing):
        registry.promote(GAME, other.id, EVIDENCE)
    assert registry.champion(GAME, "1") is None


def test_a_model_that_is_not_what_its_card_says_is_not_published(registry):
    model = small_model()
    for files in ({**model.files, WEIGHTS: b"other"}, {WEIGHTS: model.files[WEIGHTS]}, {**model.files, "x": b""}):
        with pytest.raises(ModelDamaged):
            registry.publish(Model(model.card, files))
    assert registry.models(GAME) == []


def test_models_are_listed_by_game_oldest_first_with_their_evidence(registry):
    for number in (3, 1, 2):
        registry.publish(small_model(number))
    registry.publish(small_model(9, game="duel"))
    registry.promote(GAME, small_model(2).id, EVIDENCE)
    listed = registry.models(GAME)
    assert [item.card.lineage.steps["selfplay"] for item in listed] == [1, 2, 3]
    assert [item.champion for item in listed] == [False, True, False]
    assert [item.evidence for item in listed] == [None, EVIDENCE, None]


def test_what_an_evaluation_said_is_kept_without_a_promotion(registry):
    registry.publish(small_model(1))
    registry.save_evidence(small_model(1).id, EVIDENCE)
    assert [(item.evidence, item.champion) for item in registry.models(GAME)] == [(EVIDENCE, False)]
    assert registry.champion(GAME, "1") is None
    with pytest.raises(Missing):
        registry.save_evidence(small_model(2).id, EVIDENCE)
    for number in (float("nan"), float("inf")):
        with pytest.raises(Refused, match="its return is"):
            registry.promote(GAME, small_model(1).id, msgspec.structs.replace(EVIDENCE, mean=number))
    assert registry.champion(GAME, "1") is None


def test_two_open_registries_see_each_others_work(url, registry):
    with open_registry(url) as second:
        assert second.models(GAME) == []
        registry.publish(small_model(1))
        assert len(second.models(GAME)) == 1
        registry.promote(GAME, small_model(1).id, EVIDENCE)
        assert second.models(GAME)[0].champion
        second.promote(GAME, small_model(1).id, msgspec.structs.replace(EVIDENCE, mean=490.0))
        assert registry.models(GAME)[0].evidence.mean == 490.0
        assert second.trust == registry.trust
        assert second.champion(GAME, "1") == registry.champion(GAME, "1")


def test_a_promoted_model_is_champion_of_its_version_with_a_signed_manifest(registry):
    model, other = small_model(1), small_model(2, version="2")
    for item in (model, other):
        registry.publish(item)
    signed = registry.promote(GAME, model.id, EVIDENCE)
    champion = verify(signed, registry.trust)
    assert registry.champion(GAME, "1") == signed
    assert registry.champion(GAME, "1", seat=1) == signed  # no champion of its own: the one for all seats
    assert registry.champion(GAME, "2") is None
    assert registry.champion(GameId("duel"), "1") is None
    assert (champion.model, champion.spec, champion.version, champion.seat) == (model.id, model.card.spec, "1", None)


def test_counters_only_rise_over_versions_seats_and_rollbacks(registry):
    models = [small_model(1), small_model(2), small_model(3, version="2")]
    for model in models:
        registry.publish(model)
    turns = [(models[0], None), (models[1], 0), (models[2], None), (models[1], None), (models[0], None)]
    counters = [verify(registry.promote(GAME, m.id, EVIDENCE, seat), registry.trust).counter for m, seat in turns]
    assert counters == sorted(set(counters))
    assert verify(registry.champion(GAME, "1"), registry.trust).model == models[0].id
    assert verify(registry.champion(GAME, "1", seat=0), registry.trust).model == models[1].id


def test_a_new_champion_is_rolled_out_to_a_share_of_clients(url):
    with open_registry(url, rollout_share=0.25) as registry:
        old, new = small_model(1), small_model(2)
        for model in (old, new):
            registry.publish(model)
            signed = registry.promote(GAME, model.id, EVIDENCE)
        champion = verify(signed, registry.trust)
        assert (champion.previous, champion.rollout_share) == (old.id, 0.25)
        given = [for_client(champion, f"client {i}") for i in range(2_000)]
        assert 400 < given.count(new.id) < 600
        assert given.count(old.id) == 2_000 - given.count(new.id)
    with open_registry(url, rollout_share=1.0) as registry:  # the operator widens it
        champion = verify(registry.promote(GAME, new.id, EVIDENCE), registry.trust)
        assert (champion.previous, champion.rollout_share) == (old.id, 1.0)
        champion = verify(
            registry.promote(GAME, old.id, msgspec.structs.replace(EVIDENCE, by="rollback")), registry.trust
        )
        assert (champion.model, champion.previous, champion.rollout_share) == (old.id, None, 1.0)


def test_a_model_of_another_game_is_not_promoted(registry):
    registry.publish(small_model(1, game="duel"))
    with pytest.raises(Refused) as caught:
        registry.promote(GAME, small_model(1, game="duel").id, EVIDENCE)
    assert str(caught.value).endswith(": it plays duel. Promote a model of cartpole.")


def test_promoters_at_once_never_share_a_counter(url):
    model = small_model(1)
    with open_registry(url) as registry:
        registry.publish(model)
        trust = registry.trust
    counters, lock = [], threading.Lock()

    def promote():
        with open_registry(url) as mine:
            for _ in range(10):
                counter = verify(mine.promote(GAME, model.id, EVIDENCE), trust).counter
                with lock:
                    counters.append(counter)

    threads = [threading.Thread(target=promote) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counters) == list(range(1, 41))


def test_publishers_of_one_model_at_once_all_succeed(url):
    model, results = small_model(1), []

    def publish():
        with open_registry(url) as mine:
            results.append(mine.publish(model))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [model.id] * 8
    with open_registry(url) as registry:
        assert registry.fetch(model.id) == model


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc/passwd", "%2e%2e", "a\x00b", "a" * 4096, "CON", "раss", "g" * 64, "A" * 64, "a" * 65],
)
def test_no_name_leads_out_of_the_registry(registry, name):
    registry.publish(small_model())
    for ask in (
        lambda: registry.fetch(ModelId(name)),
        lambda: registry.file(ModelId(name), "card.json"),
        lambda: registry.file(small_model().id, name),
        lambda: registry.promote(GAME, ModelId(name), EVIDENCE),
    ):
        with pytest.raises(Missing):
            ask()


@pytest.mark.parametrize("game", ["..", "../../x", "/abs", "gym:ALE/Pong-v5", "%2e%2e", "CON", "раss", "a/../b", "~"])
def test_any_game_id_has_a_champion_of_its_own(registry, game, tmp_path):
    model = small_model(1, game=game, version="../1")
    registry.publish(model)
    registry.promote(GameId(game), model.id, EVIDENCE)
    assert verify(registry.champion(GameId(game), "../1"), registry.trust).game == game
    assert [entry.name for entry in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("game", ["", "a\x00b", "a\nb", "x" * 4096, "\ud800"])
def test_a_game_id_that_can_name_nothing_is_refused(registry, game):
    registry.publish(small_model())
    registry.promote(GAME, small_model().id, EVIDENCE)
    with pytest.raises(Refused, match="cannot name a folder"):
        registry.champion(GameId(game), "1")


def test_a_card_that_names_a_file_elsewhere_is_refused(registry):
    for name in ("../x", "/x", "a/b", "card.json", "evidence.json", ".x", "x" * 200, ""):
        with pytest.raises(ModelDamaged, match="names a file"):
            registry.publish(small_model(files={name: b"x"}))


def test_a_url_that_names_no_backend_is_refused():
    for url in ("ftp://x/models", "models", "file://", "file:///", "s3://", "s3:///"):
        with pytest.raises(ConfigError) as caught:
            open_registry(url)
        assert str(caught.value) == f"[registry]: url = {url!r}. Use file://… or s3://…."


def test_a_card_survives_json(registry):
    model = small_model()
    assert msgspec.json.decode(canonical(model.card), type=Card) == model.card
