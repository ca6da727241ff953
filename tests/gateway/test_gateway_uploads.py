"""Uploads: what is kept, what is refused, and in which words."""

import json
import time

import msgspec
import numpy as np
import pytest
from talking import one_chunk, post, stored

from derived import chunks_of, differences
from sparring.games.catalogue import spec_of
from sparring.wire.chunk import Chunk, decode, encode, pack
from sparring.wire.ids import new_episode


def error_of(response):
    body = response.json()
    assert set(body["error"]) == {"code", "message", "field", "value", "limit", "do"}
    assert body["request"] == response.headers["x-request-id"]
    return body["error"]


def changed(chunk, **columns):
    return Chunk(chunk.header, {**chunk.columns, **columns})


def test_a_chunk_is_new_then_had_and_stored_once_exactly_as_it_was(http, server):
    chunks = chunks_of(1, 2, 3)
    first, again = post(http, chunks), post(http, chunks)
    assert first.status_code == again.status_code == 200
    assert [result["verdict"] for result in first.json()["results"]] == ["new"] * 3
    assert [result["verdict"] for result in again.json()["results"]] == ["had"] * 3
    assert first.json()["sample_rate"] == 1.0
    assert abs(first.json()["time_ms"] / 1000 - time.time()) < 60
    kept = [chunk for chunk in stored(server.data) if chunk.header.episode == chunks[0].header.episode]
    assert len(kept) == 3
    assert not any(differences(chunk) for chunk in kept)
    assert {chunk.header.uploader for chunk in kept} == {"anonymous"}


def test_a_players_name_is_replaced_and_nowhere_in_the_data_folder(http, server):
    post(http, [one_chunk(10, player="alice of wonderland")]).raise_for_status()
    kept = next(chunk for chunk in stored(server.data) if chunk.header.episode == one_chunk(10).header.episode)
    assert len(kept.header.player) == 32
    for path in server.data.rglob("*"):
        if path.is_file():
            assert b"alice of wonderland" not in path.read_bytes(), path


def test_a_chunk_that_breaks_its_spec_is_refused_with_field_value_and_limit(http, server):
    chunk = one_chunk(20)
    response = post(http, [changed(chunk, action=np.array([0, 1, 2, 0, 1], np.int32))])
    assert response.status_code == 422
    said = response.json()
    assert abs(said.pop("time_ms") / 1000 - time.time()) < 60
    assert said == {
        "error": {
            "code": "chunk",
            "message": "a value is out of bounds (2, the limit is [0, 1])",
            "field": "action",
            "value": 2,
            "limit": [0, 1],
            "do": "Send what the spec allows",
        },
        "request": response.headers["x-request-id"],
        "results": [
            {
                "verdict": "refused",
                "reason": "a value is out of bounds (2, the limit is [0, 1])",
                "field": "action",
                "value": 2,
                "limit": [0, 1],
            }
        ],
    }
    assert chunk.header.episode not in {kept.header.episode for kept in stored(server.data)}


@pytest.mark.parametrize(
    ("field", "columns", "header"),
    [
        ("observation/state", {"observation/state": np.full((5, 4), np.nan, np.float32)}, {}),
        ("observation/state", {"observation/state": np.zeros((5, 3), np.float32)}, {}),
        ("observation/state", {"observation/state": np.zeros((5, 4), np.float64)}, {}),
        ("reward", {"reward": np.full(5, 9, np.float32)}, {}),
        ("reward", {"reward": np.full(5, -np.inf, np.float32)}, {}),
        ("tick", {"tick": np.zeros(5, np.int64)}, {}),
        ("behaviour_logp", {"behaviour_logp": np.full(5, np.nan, np.float32)}, {}),
        ("actor", {}, {"actor": "somebody"}),
        ("spec", {}, {"spec": "0" * 64}),
        ("version", {}, {"version": "99"}),
        ("seat", {}, {"seat": 3}),
        ("sample_rate", {}, {"sample_rate": 0.0}),
        ("episode", {}, {"episode": "not-an-episode"}),
    ],
)
def test_every_field_is_held_against_the_spec(http, field, columns, header):
    chunk = one_chunk(21, **header)
    response = post(http, [changed(chunk, **columns)])
    assert response.status_code == 422
    assert error_of(response)["field"] == field
    assert response.json()["results"][0]["verdict"] == "refused"


def test_one_bad_chunk_among_good_ones_is_refused_alone(http, server):
    good, bad, late = one_chunk(30), changed(one_chunk(31), reward=np.full(5, 9, np.float32)), one_chunk(32)
    response = post(http, [good, bad, late])
    assert response.status_code == 422
    assert [result["verdict"] for result in response.json()["results"]] == ["new", "refused", "new"]
    episodes = {chunk.header.episode for chunk in stored(server.data)}
    assert good.header.episode in episodes
    assert late.header.episode in episodes
    assert bad.header.episode not in episodes


def test_another_content_under_the_same_key_is_a_conflict_and_the_first_stays(http, server):
    chunk = one_chunk(40)
    post(http, [chunk]).raise_for_status()
    response = post(http, [changed(chunk, reward=np.zeros(5, np.float32))])
    assert response.status_code == 409
    assert error_of(response) == {
        "code": "conflict",
        "message": "another chunk is stored at step 0; the first stays",
        "field": "first_step",
        "value": "0",
        "limit": "the same content as before",
        "do": "Do not send it again",
    }
    assert response.json()["results"][0]["verdict"] == "conflict"
    (kept,) = [one for one in stored(server.data) if one.header.episode == chunk.header.episode]
    assert not differences(kept)


def test_an_episode_opened_two_days_ahead_is_refused_and_the_answer_tells_the_time(http, server):
    now_ms = int(time.time() * 1000)
    chunk = chunks_of(1, 0, 0)[0]
    ahead, near = (
        Chunk(msgspec.structs.replace(chunk.header, episode=new_episode(now_ms + hours * 3_600_000)), chunk.columns)
        for hours in (48, 1)
    )
    response = post(http, [ahead])
    assert response.status_code == 422
    error = error_of(response)
    assert (error["field"], error["limit"]) == ("episode", "a day ahead")
    assert "hours ahead of the clock here" in error["message"]
    assert abs(response.json()["time_ms"] - now_ms) < 60_000
    assert post(http, [near]).status_code == 200


def test_an_unknown_game_is_missing(http):
    response = post(http, [one_chunk(50)], game="chess")
    assert response.status_code == 404
    assert error_of(response)["message"] == "there is no game 'chess' here"


def test_a_chunk_of_another_game_than_the_address_says_is_refused(http):
    response = post(http, [one_chunk(51)], game="duel")
    assert response.status_code == 422
    assert error_of(response)["field"] == "game"


def test_an_upload_of_nothing_of_too_many_or_of_an_unknown_kind_is_refused(http):
    assert error_of(post(http, b""))["message"] == "0 chunks, an upload has 1 to 256"
    many = post(http, pack([encode(one_chunk(60))] * 257))
    assert many.status_code == 413
    response = http.post("/v1/games/cartpole/chunks", content=b"x", headers={"Content-Type": "text/plain"})
    assert response.status_code == 400
    assert error_of(response)["message"] == "content type 'text/plain'"


def json_chunk(number, **columns):
    chunk = one_chunk(number, episode=new_episode())
    fields = msgspec.to_builtins(chunk.header)
    for name in ("columns", "codec", "uploader", "received_at_ms"):
        fields.pop(name, None)
    lists = {name: array.tolist() for name, array in chunk.columns.items()}
    return chunk, {"header": fields, "columns": {**lists, **columns}}


def test_json_becomes_the_same_columns_as_binary(http, server):
    chunk, said = json_chunk(70)
    response = http.post("/v1/games/cartpole/chunks", json={"chunks": [said]})
    assert response.json()["results"] == [{"verdict": "new"}]
    (kept,) = [one for one in stored(server.data) if one.header.episode == chunk.header.episode]
    for name, array in chunk.columns.items():
        assert kept.columns[name].dtype == array.dtype
        np.testing.assert_array_equal(kept.columns[name], array)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"action": [0, 1, 2**32, 0, 1]}, "action"),
        ({"action": [0, 1, 0.5, 0, 1]}, "action"),
        ({"action": [0, 1, "one", 0, 1]}, "action"),
        ({"reward": [0, 0, 1e300, 0, 0]}, "reward"),
        ({"reward": [0, 0, 1e999, 0, 0]}, "reward"),
        ({"reward": [0, 0, None, 0, 0]}, "reward"),
        ({"tick": [0, 1, 2, 3, 2**70]}, "tick"),
        ({"observation/state": [[0, 0, 0, 0], [0, 0, 0]]}, "observation/state"),
        ({"nonsense": [1, 2, 3, 4, 5]}, "nonsense"),
    ],
)
def test_json_numbers_that_do_not_fit_are_refused_not_wrapped(http, columns, field):
    _, said = json_chunk(71, **columns)
    text = json.dumps({"chunks": [said]}).replace("Infinity", "1e999")  # which is JSON, and becomes the same
    response = http.post("/v1/games/cartpole/chunks", content=text, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert error_of(response)["field"] == field


def test_a_json_header_with_an_unknown_field_names_it(http):
    _, said = json_chunk(72)
    said["header"]["is_admin"] = True
    response = http.post("/v1/games/cartpole/chunks", json={"chunks": [said]})
    assert response.status_code == 400
    assert "is_admin" in error_of(response)["message"]


def test_what_the_gateway_sets_cannot_be_set_by_the_sender(http, server):
    chunk = one_chunk(80, uploader="somebody else", received_at_ms=1)
    post(http, [chunk]).raise_for_status()
    (kept,) = [one for one in stored(server.data) if one.header.episode == chunk.header.episode]
    assert kept.header.uploader == "anonymous"
    assert abs(kept.header.received_at_ms / 1000 - time.time()) < 60


def test_the_specs_address_gives_the_spec_and_its_hash(http):
    said = http.get("/v1/games/duel").json()
    assert said["hash"] == spec_of("duel").hash
    assert said["spec"]["id"] == "duel"
    assert {game["id"] for game in http.get("/v1/games").json()["games"]} >= {"cartpole", "connect-four", "duel"}
    assert http.get("/v1/games/duel?version=7").status_code == 404


def test_a_packed_export_decodes_again():
    chunk = decode(encode(one_chunk(90)))
    assert not differences(chunk)
