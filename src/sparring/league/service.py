"""The service "league": it has the state of a league and takes its decisions; learners, actors and evaluators call it.

    actors       exchange(results)  ─► whom to meet, how often           (league/opponents.py)
    learners     begin, offer, freeze ─► go on, be frozen, start again   (learn/league/learner.py)
    evaluators   task, played, judged ─► matches among members, the gate (league/evaluator.py)

All verbs are idempotent: a caller whose call was lost calls again. What they change is on disk before they answer, so
the service may be killed at any moment, and its successor goes on.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sparring.errors import Missing
from sparring.games.scripts import scripts_for
from sparring.games.spec import GameSpec
from sparring.league.league_file import parse_league
from sparring.league.matches import MatchFile
from sparring.league.matchmaking import WinRates, draw_opponent
from sparring.league.payoff import Match, Payoff
from sparring.league.ratings import nash_mixture
from sparring.league.roles import SELF, Decision, Learner, Member, after, decide, opponents_of, to_retire
from sparring.league.rounds import check_game, known_models
from sparring.league.state import LeagueState, Result
from sparring.registry import open_registry
from sparring.services.register import register

SERVICE = "league"
GATE_LEASE_S = 900.0  # after which another evaluator plays the gate's games that one has begun
MOST_PAIR_GAMES = 2_000  # that a pair of members has at most: then its result is known


class LeagueService:
    """One instance for each league."""

    def __init__(self, game: str, data: str, league: dict[str, Any], registry_url: str, pool_url: str) -> None:
        spec = check_game(game)
        self._file, self._game = parse_league(league), game
        self._urls = {"registry": registry_url, "pool": pool_url}
        self._state = LeagueState(Path(data), spec.id)
        self._matches = MatchFile(Path(data), spec.id)
        self._played = self._matches.all()
        self._rng = np.random.default_rng()
        kept = {one.name: one for one in self._state.learners()}
        self._learners = {one.name: kept.get(one.name, one) for one in self._file.learners()}
        self._rates = {name: self._state.win_rates(one) for name, one in self._learners.items()}
        self._members = {one.name: one for one in self._state.members()}
        self._add_first_members(spec, registry_url)
        self._verdict = ""
        self._gate = (-1, 0.0)  # the evaluator that plays the gate's games, and until when no other does

    # For actors.

    @register(idempotent=True)
    def exchange(self, learner: str, generation: int, results: list[list[Any]]) -> dict[str, Any]:
        """Store what an actor's games came to, [id, opponent, wins, draws, losses] each; whom to meet from now on, as
        [name, who plays, chance]: "" is the learner itself, "script:NAME" a script, anything else a model's id."""
        one = self._learner(learner)
        fresh = self._state.add_results(learner, generation, [Result(*row) for row in results])
        if generation == one.generation:
            for result in fresh:
                self._rates[learner].add(result.opponent, result.wins, result.draws, result.losses)
        met = self._opponents(one)
        return {**self._urls, "opponents": [[name, self._player(name), chance] for name, chance in met.items()]}

    # For learners.

    @register(idempotent=True)
    def begin(self, learner: str) -> dict[str, Any]:
        """Where the learner goes on: its generation, the run to resume ("": none), and the model to start from."""
        one = self._learner(learner)
        rules = self._file.rules(one.role)
        start = ""
        if rules.start == "main":
            mains = [each.live for each in self._learners.values() if each.role == "main" and each.live]
            start = mains[0] if mains else ""
        return {"generation": one.generation, "run": one.run, "start": start}

    @register(idempotent=True)
    def started(self, learner: str, generation: int, run: str) -> None:
        """The learner's run, to be resumed by its successor."""
        one = self._learner(learner)
        if generation == one.generation:
            self._put(replace(one, run=run))

    @register(idempotent=True)
    def offer(self, learner: str, generation: int, model: str, steps: int) -> dict[str, Any]:
        """The learner's newest weights, which are in the pool: others meet them from now on. What it does next."""
        one = self._learner(learner)
        if generation != one.generation:  # it was frozen, and the answer that told it to start again was lost
            return asdict(Decision(reset=True, why="it starts again"))
        one = replace(one, live=model, steps=steps)
        self._put(one)
        return asdict(decide(self._file.rules(one.role), one, self._opponents(one), self._rates[learner], self._rng))

    @register(idempotent=True)
    def freeze(self, learner: str, generation: int, model: str, reset: bool) -> None:
        """The model, which is in the registry, is a member from now on; the learner goes on, or starts again."""
        one = self._learner(learner)
        if model in self._members:
            return
        member = Member(model, one.role, learner, one.steps, int(time.time() * 1000), judged=one.role != "main")
        current = generation == one.generation
        one = after(one, Decision(True, reset)) if current else one
        self._change([member, *self._retired(member)], one)
        self._learners[learner] = one
        if current and reset:
            self._rates[learner] = WinRates()

    # For evaluators.

    @register(idempotent=True)
    def task(self, evaluator: int) -> dict[str, Any]:
        """What to play next: the gate's games of the newest main agent that has not played them, or a match."""
        waiting = [one for one in self._members.values() if not one.judged]
        busy, until_s = self._gate
        if waiting and self._file.promote and (evaluator == busy or time.monotonic() >= until_s):
            newest = max(waiting, key=lambda one: one.frozen_at_ms)
            self._change([replace(one, judged=True) for one in waiting if one is not newest])
            self._gate = (evaluator, time.monotonic() + GATE_LEASE_S)
            return {"kind": "gate", "model": newest.name}
        names = [one.name for one in self._members.values() if not one.retired]
        payoff = Payoff.of(names, self._played)
        games = payoff.games + np.eye(len(names)) * MOST_PAIR_GAMES
        if len(names) < 2 or (games >= MOST_PAIR_GAMES).all():
            return {"kind": "wait"}
        first = int(games.sum(axis=1).argmin())
        second = draw_opponent(first, payoff.win_rates, "variance", self._rng)
        pair = {"first": names[first], "second": names[second], "games": self._file.evaluator.match_games}
        return {"kind": "match", **pair}

    @register(idempotent=True)
    def played(self, match: dict[str, Any]) -> None:
        """Store a match."""
        one = msgspec.convert(match, Match)
        if self._matches.add(one):
            self._played.append(one)

    @register(idempotent=True)
    def judged(self, model: str, verdict: str) -> None:
        """The gate's verdict on a member, as a sentence."""
        if model in self._members:
            self._change([replace(self._members[model], judged=True)])
            self._verdict, self._gate = verdict, (-1, 0.0)

    @register(idempotent=True)
    def status(self) -> dict[str, Any]:
        """The league in a few numbers."""
        return {
            "game": self._game,
            "learners": [asdict(one) for one in self._learners.values()],
            "members": sum(not one.retired for one in self._members.values()),
            "frozen": sum(one.role == "main" for one in self._members.values()),
            "games": self._state.games(),  # of learners
            "matches": len(self._played),  # among members
            "verdict": self._verdict,
        }

    def close(self) -> None:
        self._matches.close()
        self._state.close()

    def _learner(self, name: str) -> Learner:
        if name not in self._learners:
            known = ", ".join(self._learners)
            raise Missing(f"no learner {name!r} is in league.toml", where="league", do=f"It has {known}")
        return self._learners[name]

    def _opponents(self, learner: Learner) -> dict[str, float]:
        rules, members, others = self._file.rules(learner.role), list(self._members.values()), self._learners.values()
        return opponents_of(rules, learner, members, list(others), self._rates[learner.name])

    def _player(self, name: str) -> str:
        """Who plays under an opponent's name."""
        if name == SELF:
            return ""
        return self._learners[name].live if name in self._learners else name

    def _put(self, learner: Learner) -> None:
        self._state.put_learner(learner)
        self._learners[learner.name] = learner

    def _change(self, members: list[Member], learner: Learner | None = None) -> None:
        """First on disk: where that is full, the caller is told so, and nothing has changed here either."""
        if members:
            self._state.put_members(members, learner)
            self._members.update({one.name: one for one in members})

    def _retired(self, newest: Member) -> list[Member]:
        """Members that are too many once there is this one."""
        members = {**self._members, newest.name: newest}
        active = [one.name for one in members.values() if not one.retired]
        if len(active) <= self._file.members:
            return []
        mains = [self._rates[one.name] for one in self._learners.values() if one.role == "main"]
        nash = dict(zip(active, nash_mixture(Payoff.of(active, self._played).win_rates).tolist(), strict=True))
        names = to_retire(list(members.values()), self._file.members, mains, nash)
        return [replace(members[name], retired=True) for name in names]

    def _add_first_members(self, spec: GameSpec, registry_url: str) -> None:
        """The game's scripts, and as guests its champions and newest models from before the league."""
        first = [Member(f"script:{name}", "script", judged=True) for name in scripts_for(spec.id)]
        if not any(one.role != "script" for one in self._members.values()):
            with open_registry(registry_url) as registry:
                guests = known_models(registry, spec, self._file.guests)
            first += [Member(one, "guest", judged=True) for one in guests]
        self._change([one for one in first if one.name not in self._members])
