"""List, inspect, move and promote models.

list [GAME] · show ID · verify [ID] · pull ID --from URL · push FOLDER|ID [--to REGISTRY] · promote ID · rollback GAME ·
copy --to REGISTRY · strengths GAME · share · unshare. An ID may be cut to any beginning that only one model has.
`promote` plays the promotion gate's games first, unless --force-reason gives a reason not to; `rollback` returns to the
champion before the present one. `copy` copies every model and champion to another registry; `share` lets everybody
download from a bucket whose URL says public=1. `strengths` shows the ladder that `strength=` chooses from, and the
styles of `style=`; --make makes both from the league's ratings, by games between the steps, and puts them on sale.
Example: spar models promote 3fa8
"""

import argparse
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec

from sparring.cli.output import Output, plain_text, token_argument, utc_minute
from sparring.config import Config
from sparring.errors import ConfigError, Missing, ModelDamaged, NotYours, Refused, SparringError, Unreachable
from sparring.registry import model_in, open_registry
from sparring.registry.champions import ChampionEntry, rollback_target
from sparring.registry.protocol import Evidence, ListedModel
from sparring.registry.registry import Registry, read_model
from sparring.wire.champion import Champion, verify
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import ONNX, Model
from sparring.wire.strengths import Strengths, read_strengths, verify_strengths

SHORT = 12
TIMEOUT_S = 30.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("what", nargs="?", metavar="GAME|ID|FOLDER", help="a game, a model's id, or a folder")
    parser.add_argument("--all", action="store_true", help="verify every model (also without an ID)")
    parser.add_argument("--from", dest="source", metavar="URL", help="pull: the gateway to download from")
    token_argument(parser, "pull: a key with scope read")
    parser.add_argument("--to", metavar="REGISTRY", help="push, copy: file:///folder or s3://… (push: registry.url)")
    parser.add_argument("--episodes", type=int, help="promote: at most so many games (registry.gate_episodes)")
    parser.add_argument("--seed", type=int, help="promote: repeat the games of a gate with this seed")
    parser.add_argument("--make", action="store_true", help="strengths: measure a new ladder, and sell it")
    parser.add_argument("--style", metavar="NAME", help="strengths: show the ladder of this style")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="strengths: draw the ladder into a .png or .svg")
    parser.add_argument("--force-reason", metavar="TEXT", help="promote without the gate, and say why")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    with _open(args.config) as registry:
        return ACTIONS[args.action](registry, args, output)


def _open(config: Config) -> Registry:
    settings = config.registry
    days, share = settings.champion_days, settings.rollout_share
    return open_registry(config.registry_url, champion_days=days, rollout_share=share)


def _list(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    games = [args.what] if args.what else registry.games()
    found = [listed for game in games for listed in registry.models(game)]
    if not found:
        output.say(f"no models{f' of {args.what}' if args.what else ''} yet; `spar train GAME` makes some")
    else:
        rows = []
        for listed in found:
            card, evidence = listed.card, listed.evidence
            score = f"{evidence.mean:.4g} ± {evidence.sd:.3g}" if evidence and evidence.episodes else ""
            score += f" against {evidence.opponent}" if score and evidence and evidence.opponent else ""
            row = (card.id[:SHORT], card.game, card.version, card.lineage.algorithm, sum(card.lineage.steps.values()))
            rows.append((*row, utc_minute(card.created_at_ms), score, "champion" * listed.champion))
        output.table(("id", "game", "version", "algorithm", "steps", "created", "return", "champion"), rows)
    return {"models": [_described(listed) for listed in found]}


def _show(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = registry.fetch(_resolve(registry, args.what, "show"))
    listed = next(item for item in registry.models(model.card.game) if item.card.id == model.id)
    said = _described(listed) | {
        "card": msgspec.to_builtins(model.card),
        "bytes": {name: len(content) for name, content in sorted(model.files.items())},
    }
    shown = said | msgspec.to_builtins(model.card.lineage) | {"created": utc_minute(model.card.created_at_ms)}
    for key, value in shown.items():
        if key not in ("card", "created_at_ms") and (text := plain_text(value)):
            output.say(f"{key:<14} {text}")
    output.say(f"{'inputs':<14} {', '.join(f'{i.name} {i.dtype}{list(i.shape)}' for i in model.card.network.inputs)}")
    output.say(f"{'heads':<14} {', '.join(f'{head.name} [{head.units}]' for head in model.card.network.heads)}")
    return said


def _verify(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    ids = registry.ids() if args.all or args.what is None else [_resolve(registry, args.what, "verify")]
    rows, games = [], set()
    for model in ids:
        try:
            whole = registry.fetch(model)
            games.add(whole.card.game)
            rows.append({"id": model, "ok": True, "difference": _agreement(whole), "error": None})
        except SparringError as error:
            rows.append({"id": model, "ok": False, "difference": None, "error": str(error)})
        shown = f"agrees within {rows[-1]['difference']:.1e}" if rows[-1]["ok"] else rows[-1]["error"]
        output.say(f"{model[:SHORT]}  {'ok ' if rows[-1]['ok'] else 'BAD'}  {shown}")
    champions = [_verified_history(registry, game, one) for game in sorted(games) for one in registry.versions(game)]
    for one in champions:
        text = f"{one['records']} signatures hold" if one["ok"] else one["error"]
        output.say(f"champions of {one['game']} {one['version']}  {'ok ' if one['ok'] else 'BAD'}  {text}")
    bad = sum(not row["ok"] for row in [*rows, *champions])
    return {"models": rows, "champions": champions, "bad": bad, "exit_code": 1 if bad else 0}


def _pull(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.source is None:
        raise _usage("pull ID --from URL")
    wanted = (args.what or "").lower()
    if len(wanted) != 64 or any(digit not in "0123456789abcdef" for digit in wanted):
        raise _usage("pull ID --from URL, with all 64 digits of the ID")
    return _taken(registry, _downloaded(args.source, ModelId(wanted), args.token), args.source, output)


def _push(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.what is None:
        raise _usage("push FOLDER|ID [--to REGISTRY]")
    if args.to and args.to.startswith(("http://", "https://")):
        do = "Pull from that machine, or give --to file:///folder"
        raise Refused("a gateway takes no models", where="spar models push", do=do)
    if not Path(args.what).is_dir() and args.to is None:
        raise _usage("push ID --to REGISTRY, or push FOLDER")
    folder = Path(args.what)
    whole = model_in(folder) if folder.is_dir() else registry.fetch(_resolve(registry, args.what, "push"))
    if args.to is None:
        return _taken(registry, whole, args.config.registry_url, output)
    with open_registry(args.to) as other:
        return _taken(other, whole, args.to, output)


def _promote(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = registry.fetch(_resolve(registry, args.what, "promote"))
    _agreement(model)
    if args.force_reason is not None:
        if not args.force_reason.strip():
            raise ConfigError("no reason is given", where="--force-reason", do="Say why the gate is skipped")
        evidence, reason = _by_hand(registry, model, None, "operator", args.force_reason), args.force_reason
    else:
        evidence, reason = _tried(registry, model, args, output)
    champion = verify(registry.promote(model.card.game, model.id, evidence), registry.trust)
    where = f"{champion.game} {champion.version} (counter {champion.counter})"
    output.say(f"{model.id[:SHORT]} is champion of {where}: {reason}")
    return {"promoted": True, "reason": reason} | _said(champion, registry, output)


def _rollback(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.what is None:
        raise _usage("rollback GAME")
    histories = [registry.history(args.what, *place) for place in registry.places(args.what)]
    history = max(histories, key=_last_decision, default=[])
    target = rollback_target(history) if history else None
    if target is None:
        do = "`spar models list` shows the champion"
        raise Missing("there is no champion to return to", where=f"game {args.what}", do=do)
    now, then = history[-1].champion, next(one for one in reversed(history) if one.champion.model == target)
    evidence = _by_hand(registry, registry.fetch(target), then.evidence, "rollback", f"from {now.model}")
    same = [one[-1].champion for one in histories if one and one[-1].champion.model == now.model]  # seats of its kind
    seats = [one.seat for one in same if one.version == now.version]
    champion = verify([registry.promote(args.what, target, evidence, seat) for seat in seats][-1], registry.trust)
    output.say(
        f"{target[:SHORT]} is champion of {args.what} {champion.version} again (counter {champion.counter}), "
        f"instead of {now.model[:SHORT]}"
    )
    return {"from": now.model} | _said(champion, registry, output)


def _said(champion: Champion, registry: Registry, output: Output) -> dict[str, Any]:
    """The champion, and a `trust` with which a client takes no older one of that game, even if it never saw one."""
    trust = f"{registry.trust}@{champion.counter}"
    output.say(f"trust {trust}")
    return {"champion": msgspec.to_builtins(champion), "trust": trust}


def _copy(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Models, their evidence, the champions and the ladders; counters go on, so that clients follow without a gap."""
    if args.to is None:
        raise _usage("copy --to REGISTRY")
    settings = replace(args.config.registry, url=args.to)
    copied, champions = [], []
    with _open(replace(args.config, registry=settings)) as other:
        for game in registry.games():
            for listed in registry.models(game):
                copied.append(other.publish(registry.fetch(listed.card.id)))
                if listed.evidence is not None:
                    other.save_evidence(copied[-1], listed.evidence)
                output.progress(f"{copied[-1][:SHORT]} of {game}")
            histories = [found for place in registry.places(game) if (found := registry.history(game, *place))]
            above = max((history[-1].champion.counter for history in histories), default=0)
            for history in sorted(histories, key=_last_decision):
                last = history[-1]
                signed = other.promote(game, last.champion.model, last.evidence, last.champion.seat, above=above)
                champions.append(msgspec.to_builtins(verify(signed, other.trust)))
            for version in sorted({version for version, _ in registry.places(game)}):
                if (sold := registry.strengths(game, version)) is not None:
                    _sell_copy(other, read_strengths(sold, registry.trust), output)
        output.say(f"{len(copied)} models and {len(champions)} champions: {args.to.partition('?')[0]}")
    return {"models": copied, "champions": champions}


def _sell_copy(other: Registry, strengths: Strengths, output: Output) -> None:
    try:
        other.sell(strengths)
    except Missing as error:  # a step's model was not in the first registry either
        output.say(f"the strengths of {strengths.game} {strengths.version} are not copied: {error}")


def _strengths(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.games.catalogue import Catalogue, spec_of

    if args.what is None:
        raise _usage("strengths GAME [--make]")
    spec = Catalogue.from_config(args.config).newest(args.what) or spec_of(args.what)
    if args.make:
        from sparring.league.strengths import make_strengths

        made = make_strengths(registry, Path(args.config.data), spec, seed=args.seed or 0, tell=output.progress)
        registry.sell(made)
    signed = registry.strengths(spec.id, spec.version)
    if signed is None:
        do = f"Play a league, `spar league {spec.id}`, or write: spar models strengths {spec.id} --make"
        raise Missing("no ladder of strengths was made yet", where=f"{spec.id} {spec.version}", do=do)
    found = verify_strengths(signed, registry.trust, spec)
    steps = found.steps if args.style is None else found.style(args.style).steps
    last = len(steps) - 1
    rows = [
        (k, f"{k / last:.2f}", f"{one.elo:+.0f}", f"{one.low:+.0f} to {one.high:+.0f}", one.model[:SHORT], one.does)
        for k, one in enumerate(steps)
    ]
    output.table(("step", "strength", "Elo", "95 %", "model", "what it does"), rows)
    gap = (found.steps[-1].elo - found.steps[0].elo) / max(last, 1)
    if args.style is None:
        output.say(f"steps of {gap:.0f} Elo, measured in {found.games:,} games; made {utc_minute(found.issued_at_ms)}")
    else:
        output.say(f"style {args.style}: steps rated as the first ladder's are, as far as its members reach")
    if near := [k for k in range(last) if steps[k].high >= steps[k + 1].low and steps[k] != steps[k + 1]]:
        output.say(f"steps that may be as strong as the next one (95 %): {', '.join(map(str, near))}")
    champion = registry.champion(spec.id, spec.version)
    model = None if champion is None else verify(champion, registry.trust).model
    if args.style is None and model not in (None, found.steps[-1].model):
        now = f"strength 1 is the champion, now {model[:SHORT]} and not step {last}"
        output.say(f"{now}; `spar league {shlex.quote(spec.id)}` makes a new ladder")
    if found.styles:
        styles = [(one.name, len(one.members), f"{one.steps[-1].elo:+.0f}", one.means) for one in found.styles]
        output.table(("style", "members", "Elo at 1", "what it means"), styles)
    else:
        output.say("no styles: its members play alike, or are too few to tell")
    if args.plot is not None:
        from sparring.league.standings_plot import plot_strengths

        plot_strengths(found, args.plot, args.style)
        output.say(f"drawn into {args.plot}")
    return {**msgspec.to_builtins(found), "gap_elo": gap, "trust": registry.trust}


def _share(registry: Registry, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    url, wanted = args.config.registry.url, args.action == "share"
    if not url.startswith("s3://"):
        raise Refused("only a bucket can be shared", where=f"registry.url = {url}", do="`spar serve` shares a folder")
    from sparring.registry.s3.registry import S3Registry

    assert isinstance(registry, S3Registry)
    output.say(registry.share(wanted))
    return {"shared": wanted}


def _tried(registry: Registry, model: Model, args: argparse.Namespace, output: Output) -> tuple[Evidence, str]:
    """The gate's games and its answer; Refused where the model is not shown to be better."""
    from sparring.league.gate import GateLimits, passed, sentence, tries_before
    from sparring.league.promotion import tried

    limits = GateLimits(args.episodes, math.inf) if args.episodes else GateLimits.from_config(args.config)
    output.progress(f"the gate: at most {limits.episodes} episodes of {model.card.game}")
    _, (evidence,) = tried(registry, [model], limits, tries=tries_before(registry, model), seed=args.seed)
    if math.isfinite(evidence.mean):
        registry.save_evidence(model.id, evidence)  # also of one that does not pass: the next list shows it
    reason = sentence(evidence)
    if not passed(evidence):
        do, found = "Train on, or give --force-reason", msgspec.to_builtins(evidence)
        raise Refused(reason, where=f"model {model.id[:SHORT]}", do=do, field="evidence", value=found)
    return evidence, reason


def _last_decision(history: list[ChampionEntry]) -> int:
    """The counter of the last promotion or rollback; re-signs do not count."""
    return max((entry.champion.counter for entry in history if entry.kind != "re-sign"), default=0)


def _verified_history(registry: Registry, game: GameId, version: str) -> dict[str, Any]:
    said: dict[str, Any] = {"game": game, "version": version, "ok": True, "records": 0, "error": None}
    try:
        seats = [seat for one, seat in registry.places(game) if one == version]
        records = sum(len(registry.history(game, version, seat)) for seat in seats)
    except SparringError as error:
        return said | {"ok": False, "error": str(error)}
    return said | {"records": records}


def _taken(registry: Registry, model: Model, where: str, output: Output) -> dict[str, Any]:
    """Publish what came from elsewhere, once its weights and graph are sound."""
    _agreement(model)
    registry.publish(model)
    output.say(f"{model.id[:SHORT]} of {model.card.game} {model.card.version}: {where}, verified")
    return {"model": model.id, "game": model.card.game, "version": model.card.version}


def _downloaded(url: str, model: ModelId, token: str | None) -> Model:
    """The model at the gateway `url`; exactly the bytes that its id names."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as client:
        address = f"{url.rstrip('/')}/v1/models/{model}"
        return read_model(lambda name, max_bytes: _download(client, f"{address}/{name}", max_bytes), model)


def _download(client: httpx.Client, url: str, max_bytes: int) -> bytes:
    try:
        with client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise _refusal(answer.status_code, url)
            parts, size = [], 0
            for part in answer.iter_bytes():
                size += len(part)
                if size > max_bytes:
                    raise ModelDamaged(f"it is larger than {max_bytes} bytes", where=url, do="Do not use it")
                parts.append(part)
            return b"".join(parts)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        wrong = str(error) or type(error).__name__
        raise Unreachable(wrong, where=url, do="Check the address, then try again") from None


def _refusal(status: int, url: str) -> SparringError:
    if status == 404:
        return Missing("there is no such model there", where=url, do="Check the id and the address")
    if status in (401, 403):
        return NotYours("the gateway does not let this caller read", where=url, do="Give --token with scope read")
    return Unreachable(f"the gateway answered {status}", where=url, do="Try again later")


def _agreement(model: Model) -> float:
    from sparring.nets.model_files import check_agreement, read_weights

    if ONNX not in model.files:
        raise ModelDamaged(f"it has no {ONNX}", where=f"model {model.id[:SHORT]}", do="Do not use it")
    return check_agreement(model.card.network, read_weights(model), model.files[ONNX])


def _by_hand(registry: Registry, model: Model, known: Evidence | None, by: str, reason: str) -> Evidence:
    """The evidence of a promotion that a person decided. It counts as no try of the gate, and keeps the number of those
    of its lineage."""
    from sparring.league.gate import tries_before

    known = known or registry.evidence(model.id) or Evidence(episodes=0, mean=0.0, sd=0.0)
    return msgspec.structs.replace(known, by=by, reason=reason, tries=tries_before(registry, model))


def _resolve(registry: Registry, text: str | None, action: str) -> ModelId:
    if not text:
        raise _usage(f"{action} ID")
    return registry.find(text)


def _described(listed: ListedModel) -> dict[str, Any]:
    card = listed.card
    return {
        "id": card.id,
        "game": card.game,
        "version": card.version,
        "algorithm": card.lineage.algorithm,
        "steps": sum(card.lineage.steps.values()),
        "created_at_ms": card.created_at_ms,
        "evidence": msgspec.to_builtins(listed.evidence),
        "champion": listed.champion,
    }


def _usage(words: str) -> ConfigError:
    return ConfigError("something is missing in the call", where="spar models", do=f"Write: spar models {words}")


ACTIONS = {
    "list": _list,
    "show": _show,
    "verify": _verify,
    "pull": _pull,
    "push": _push,
    "promote": _promote,
    "rollback": _rollback,
    "copy": _copy,
    "strengths": _strengths,
    "share": _share,
    "unshare": _share,
}
