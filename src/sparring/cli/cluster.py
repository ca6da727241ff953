"""Run a Ray cluster on EC2 that terminates its nodes, and list what still costs money (docs/cluster.md).

`yaml` writes the file for `ray up` and, beside it, the policies of the head and of you (least privilege). `up` makes
the key pair, the closed security group and the role, then starts the cluster. `submit -- train GAME …` runs `spar` on
its head. `down` terminates every node and shows what is left. `leftovers` lists what is still there, what it costs and
the commands that remove it; it removes nothing itself. Your AWS profile gives the credentials.
Example: spar cluster yaml --workers 0:4
"""

import argparse
import dataclasses
import datetime
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, Missing, Unreachable

if TYPE_CHECKING:
    from sparring.hosts.cluster.launcher import ClusterPlan
    from sparring.hosts.cluster.leftovers import Leftover

REST = True  # submit: what stands after -- is for `spar` on the head
ACTIONS = ("yaml", "up", "submit", "down", "leftovers")
OWN_ADDRESS = "https://checkip.amazonaws.com"  # AWS's own answer to "from which address do you see me?"
SETTLE_S = 15.0  # until a new role is known everywhere in AWS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS)
    file = Path("cluster.yaml")
    parser.add_argument("--file", "--out", type=Path, default=file, help="the cluster's file (cluster.yaml)")
    made = parser.add_argument_group("yaml")
    made.add_argument("--name", default="main", help="of the cluster (main), its tag and all that it needs")
    made.add_argument("--head-type", default="m5.large", metavar="TYPE", help="an EC2 instance type (m5.large)")
    made.add_argument("--worker-type", default="m5.large", metavar="TYPE", help="an EC2 instance type (m5.large)")
    made.add_argument("--workers", default="0:2", metavar="MIN:MAX", help="as many as needed, between these (0:2)")
    market = made.add_mutually_exclusive_group()
    market.add_argument("--spot", dest="spot", action="store_true", default=True, help="spot workers (the default)")
    market.add_argument("--on-demand", dest="spot", action="store_false", help="workers that are not taken back")
    made.add_argument("--max-price", type=float, default=0.0, metavar="DOLLARS", help="an hour, for a spot worker")
    made.add_argument("--idle-minutes", type=float, default=5.0, metavar="N", help="an idle worker ends after (5)")
    made.add_argument("--max-hours", type=float, default=24.0, metavar="N", help="any node ends after (24); 0: never")
    made.add_argument("--image", default="", metavar="AMI", help="with apt and Python 3.11+ (Ubuntu 24.04, the newest)")
    made.add_argument("--disk-gib", type=int, default=60, metavar="N", help="of every node (60)")
    made.add_argument("--package", default="", metavar="SPEC", help="what pip installs, such as sparring[train,ray]==…")
    made.add_argument("--wheel", default="", metavar="FILE", help="or a wheel (made of the code that runs here)")
    made.add_argument("--folder", default="", metavar="DIR", help="copied to every node: your games and spar.toml")
    made.add_argument("--ssh-from", default="auto", metavar="CIDR", help="who may open SSH (auto: this machine alone)")
    made.add_argument("--subnet", action="append", default=[], metavar="ID", help="of the nodes; may be repeated")
    made.add_argument("--private", action="store_true", help="nodes are reached by their inner addresses")
    parser.add_argument("--policy", action="store_true", help="yaml: print the policies instead of writing files")
    parser.add_argument("--no-wait", action="store_true", help="submit: return once the job is queued")
    parser.add_argument("--fetch", type=Path, metavar="DIR", help="down: first copy the head's data folder here")
    parser.add_argument("--region", action="append", default=[], metavar="REGION", help="yaml (us-west-2), leftovers")
    parser.add_argument("--all", action="store_true", help="leftovers: in every region of the account")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.rest and args.action != "submit":
        do = f"Drop {' '.join(args.rest)!r}; only submit takes words"
        raise ConfigError("there are too many words", where=f"spar cluster {args.action}", do=do)
    if args.action == "yaml":
        return _yaml(args, output)
    if args.action == "leftovers":
        return _leftovers(_regions(args), "", output)
    from sparring.hosts.cluster import launcher

    plan = launcher.read(args.file)
    if args.action == "up":
        return _up(args.file, plan, output)
    if args.action == "submit":
        code = launcher.submit(args.file, args.rest, not args.no_wait, output.say)
        return {"cluster": plan.name, "exit_code": code}
    return _down(args.file, plan, args.fetch, output)


def _plan(args: argparse.Namespace) -> "ClusterPlan":
    from sparring.hosts.cluster.launcher import ClusterPlan, workers

    low, high = workers(args.workers)
    if len(args.region) > 1:
        raise ConfigError("--region is given twice", where="spar cluster yaml", do="A cluster lives in one region")
    for option, path in (("--wheel", args.wheel), ("--folder", args.folder)):
        if path and not Path(path).exists():
            raise Missing("it is not there", where=f"{option} {path}", do="Name a path of this machine")
    same = ["name", "head_type", "worker_type", "spot", "max_price", "idle_minutes", "max_hours", "image", "disk_gib"]
    same += ("wheel", "folder", "ssh_from", "private", *(["package"] if args.package else []))
    return ClusterPlan(
        region=args.region[0] if args.region else "us-west-2",
        min_workers=low,
        max_workers=high,
        subnets=tuple(args.subnet),
        **{name: getattr(args, name) for name in same},
    )


def _yaml(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    import importlib.metadata

    from sparring.hosts.cluster import launcher, prerequisites

    plan = _plan(args)
    policies = {"head": prerequisites.head_policy(plan), "user": prerequisites.user_policy(plan)}
    if args.policy:
        if not output.json:
            output.say(json.dumps(policies, indent=2))
        return policies
    try:
        ray = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        do = "Run pip install 'sparring[ray,aws]': the file pins the nodes to this machine's version"
        raise Missing("the package 'ray' is not installed", where="spar cluster yaml", do=do) from None
    if not (args.package or args.wheel):
        plan = dataclasses.replace(plan, wheel=str(launcher.make_wheel(args.file.parent)))
        output.say(f"wrote {plan.wheel}")
    files = {
        args.file: launcher.as_yaml(launcher.document(plan, ray)),
        **{launcher.policy_file(args.file, whose): json.dumps(one, indent=2) + "\n" for whose, one in policies.items()},
    }
    for path, text in files.items():
        before = path.with_name(f"{path.name}.before")
        kept = path.is_file() and path.read_text() != text  # a bucket may have been added to the policy by hand
        if kept:
            path.replace(before)
        path.write_text(text)
        output.say(f"wrote {path}{f'; what it was is {before}' if kept else ''}")
    output.say(f"next: spar cluster up --file {args.file}")
    return {"cluster": plan.name, "region": plan.region, "files": [str(path) for path in files]}


def _up(file: Path, plan: "ClusterPlan", output: Output) -> dict[str, Any]:
    from sparring.hosts.cluster import launcher, prerequisites

    policy = launcher.read_head_policy(file)
    ssh_from = launcher.network(_own_address() if plan.ssh_from == "auto" else plan.ssh_from)
    done = prerequisites.prepare(dataclasses.replace(plan, ssh_from=ssh_from), policy, Path.home() / ".ssh")
    for sentence in done:
        output.say(sentence)
    if any("instance profile" in sentence for sentence in done):
        output.say(f"waiting {SETTLE_S:.0f} s until AWS knows the new role everywhere")
        time.sleep(SETTLE_S)
    code = launcher.up(file, output.say)
    if code:
        output.say("the cluster did not come up whole; `spar cluster down` ends what did")
    return {"cluster": plan.name, "region": plan.region, "exit_code": code}


def _own_address() -> str:
    import httpx

    try:
        return httpx.get(OWN_ADDRESS, timeout=10).raise_for_status().text.strip()
    except httpx.HTTPError as error:
        do = "Write your address yourself: spar cluster yaml --ssh-from 203.0.113.7/32"
        raise Unreachable(f"it did not say our address ({type(error).__name__})", where=OWN_ADDRESS, do=do) from None


def _down(file: Path, plan: "ClusterPlan", folder: Path | None, output: Output) -> dict[str, Any]:
    from sparring.hosts.cluster import launcher

    code = launcher.fetch(file, folder, output.say) if folder else 0
    if code:
        output.say("the data was not copied whole, so nothing was ended; try again, or drop --fetch")
        return {"cluster": plan.name, "exit_code": code}
    if _instances(plan):  # Ray would first make a new key pair and group, for a cluster that is gone
        code = launcher.down(file, output.say)
    else:
        output.say(f"no node of {plan.name} is running")
    left = _leftovers([plan.region], plan.name, output)
    return {"cluster": plan.name, **left, "exit_code": code}


def _instances(plan: "ClusterPlan") -> bool:
    from sparring.hosts.cluster import leftovers

    now = datetime.datetime.now(datetime.UTC)
    return any(one.kind == "instance" for one in leftovers.find([plan.region], now, plan.name))


def _regions(args: argparse.Namespace) -> list[str]:
    from sparring.hosts.cluster import aws, launcher, leftovers

    regions = list(args.region) or (
        [launcher.read(args.file).region] if args.file.is_file() else [aws.default_region()]
    )
    if not regions[0]:
        do = "Name it with --region, or take all of them with --all --region us-east-1"
        raise ConfigError("no region is set", where="spar cluster leftovers", do=do)
    return leftovers.all_regions(regions[0]) if args.all else regions


def _leftovers(regions: list[str], cluster: str, output: Output) -> dict[str, Any]:
    from sparring.hosts.cluster import leftovers

    found = leftovers.find(regions, datetime.datetime.now(datetime.UTC), cluster)
    where = ", ".join(regions) if len(regions) < 4 else f"{len(regions)} regions"
    if not found:
        output.say(f"nothing is left in {where}")
        return {"regions": regions, "leftovers": [], "costing": 0}
    rows = [
        (one.kind, one.id, one.region, one.cluster, one.state, _age(one.age_s), one.costs, _price(one)) for one in found
    ]
    output.table(("what", "id", "where", "cluster", "state", "age", "costs", "$ a month"), rows)
    costing, month = sum(bool(one.costs) for one in found), sum(one.dollars_per_month or 0.0 for one in found)
    unknown = " (? where the price is not known here)" if any(one.dollars_per_month is None for one in found) else ""
    output.say(f"\nprices: {leftovers.PRICES_FROM}{unknown}; check them before you rely on one")
    output.say(
        f"{len(found)} things are left in {where}; {costing} of them cost money, ${month:.2f} a month where the price "
        "is known. In this order they go:\n"
    )
    for command in leftovers.removal_script(command for one in found for command in one.commands):
        output.say(command)
    said = {"regions": regions, "leftovers": found, "costing": costing}
    return said | {"dollars_per_month": round(month, 2), "prices_from": leftovers.PRICES_FROM}


def _price(one: "Leftover") -> str:
    return "" if not one.costs else "?" if one.dollars_per_month is None else f"{one.dollars_per_month:.2f}"


def _age(age_s: float | None) -> str:
    if age_s is None:
        return "?"
    hours = age_s / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"
