"""Episode ids and what follows from them."""

from sparring.wire.ids import EpisodeId, asked_for, is_episode, misdated, new_episode, opened_at_ms


def test_an_episode_says_when_it_was_opened() -> None:
    assert opened_at_ms(new_episode(now_ms=1_700_000_000_123)) == 1_700_000_000_123


def test_only_canonical_uuid7_names_an_episode() -> None:
    good = new_episode()
    assert is_episode(good)
    for bad in (
        "",
        good.upper().replace("7", "7") + "0",
        good[:-1],
        good[:14] + "4" + good[15:],
        good.replace("-", "_"),
    ):
        assert not is_episode(bad), bad


def test_the_share_of_episodes_asked_for_is_the_rate() -> None:
    episodes = [new_episode() for _ in range(20_000)]
    assert abs(sum(asked_for(e, 0.25) for e in episodes) / 20_000 - 0.25) < 0.02
    assert all(asked_for(e, 1.0) for e in episodes)
    assert not any(asked_for(e, 0.0) for e in episodes)


def test_a_lower_rate_asks_for_a_part_of_what_a_higher_one_does() -> None:
    episodes = [new_episode() for _ in range(1_000)]
    assert {e for e in episodes if asked_for(e, 0.1)} < {e for e in episodes if asked_for(e, 0.5)}


def test_the_rule_is_fixed_so_that_every_language_draws_alike() -> None:
    episode = EpisodeId("01890a5d-ac96-774b-bcce-b302099a8057")
    assert [asked_for(episode, rate) for rate in (0.5302, 0.5303)] == [False, True]


def test_an_episode_of_another_time_is_refused_with_the_reason_and_one_of_today_is_not() -> None:
    now_ms, day_ms = 1_750_000_000_000, 86_400_000
    ages_days = {-1.1: "26.4 hours ahead", -0.9: "", 0.0: "", 29.0: "", 31.0: "31.0 days ago, and only 30 are kept"}
    for age_days, said in ages_days.items():
        found = misdated(new_episode(int(now_ms - age_days * day_ms)), now_ms, 30 * day_ms)
        assert said in found, age_days
        assert bool(found) == bool(said), age_days
    assert misdated(new_episode(0), now_ms, 0) == ""
