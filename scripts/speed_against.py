#!/usr/bin/env python3
"""Compares the program of this tree with those of older commits, by short runs in turns.

    scripts/speed.sh --against COMMIT [--against COMMIT]... [options]
    scripts/speed_against.py --self-test

A turn measures each quantity with each build, one after another in random order, so that all builds
see the same drift of the machine. A run has a few windows of 20 ms; runs and not windows take turns,
because the layout of a process in memory moves a figure too. The windows of a run are tagged near or
far by the line probe of `courser bench`, and a ratio compares two runs of one turn of one placement.
The table shows the median of each build's values, and the median over turns of this tree's value
divided by that of each commit, with its 95 % interval (its range, if there are fewer than six turns).
A busy machine disturbs every figure; `chrt -r 10 scripts/speed.sh --against ...` keeps other programs
from the cores as long as a run lasts.

Each commit is built once, by its own toolchain, in $COURSER_SPEED_CACHE (default:
${XDG_CACHE_HOME:-~/.cache}/courser/speed): its files and program in COMMIT/, and what the builds share
in target/. Remove the directory to free the space. A quantity that a build cannot measure, because
its options are older, is named and left out for that build. With COURSER_BIN set, that program takes the
place of this tree's.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from speed_tables import bits, machine, rate
from speed_tables import time as show_time

ROOT = Path(__file__).resolve().parent.parent
# A run that takes longer is stuck.
LONGEST_RUN_S = 120
# A build that fails this often in a row no longer takes part in a quantity.
MOST_FAILURES = 3


@dataclass(frozen=True)
class Quantity:
    """A figure of `courser bench`."""

    key: str
    title: str
    arguments: tuple
    field: str
    show: object


def over(transport, *arguments):
    return (arguments[0], "--transport", transport, *arguments[1:])


def rates(in_flight, *more):
    return over("shm", "rate", "--batch", "4", "--in-flight", str(in_flight), *more)


QUANTITIES = [
    Quantity("shm_latency_p50_ns", "shared memory, p50", over("shm", "latency"), "latency_p50_ns", show_time),
    Quantity("shm_rate_60_rps", "60 in flight", rates(60), "rate_rps", rate),
    Quantity("shm_rate_32_rps", "32 in flight", rates(32), "rate_rps", rate),
    Quantity("shm_rate_16_rps", "16 in flight", rates(16), "rate_rps", rate),
    Quantity("shm_rate_symmetric_rps", "both sides call, each", rates(60, "--symmetric"), "rate_rps", rate),
    Quantity(
        "shm_goodput_1k_bps",
        "8 MiB, packets of 1 KiB",
        over("shm", "bandwidth", "--size", "8MiB", "--frame-size", "1072"),
        "goodput_bps",
        bits,
    ),
    Quantity("udp_latency_p50_ns", "UDP, p50", over("udp", "latency"), "latency_p50_ns", show_time),
]


@dataclass(frozen=True)
class Build:
    """A program and its name in the table."""

    name: str
    program: Path


# ---- builds --------------------------------------------------------------------------------------


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def cache():
    if named := os.environ.get("COURSER_SPEED_CACHE"):
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "courser" / "speed"


def build(tree, target):
    """Compiles the program of a tree and returns its path."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    command = ["cargo", "build", "--release", "--locked", "-q", "-p", "courser-cli"]
    subprocess.run(command, cwd=tree, env=environment, check=True)
    return Path(target) / "release" / "courser"


def of_commit(commit):
    """The program of a commit, compiled if it is not there."""
    full = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    name = git("rev-parse", "--short", full)
    place = cache() / full
    program = place / "courser"
    if not program.exists():
        tell(f"compiling {name} in {place}")
        tree = place / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", full], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            sys.exit(f"git cannot read the files of {name}")
        put(build(tree, cache() / "target"), program)
    return Build(name, program)


def of_this_tree(folder):
    """The program of this tree. A copy, which a build in the meantime does not replace."""
    name, program = "COURSER_BIN", os.environ.get("COURSER_BIN")
    if program is None:
        name = f"this tree ({git('describe', '--always', '--dirty', '--exclude=*')})"
        tell(f"compiling {name}")
        program = build(ROOT, ROOT / os.environ.get("CARGO_TARGET_DIR", "target"))
    found = shutil.which(program)
    if found is None:
        sys.exit(f"{program} is not a program")
    copy = Path(folder) / "courser"
    put(Path(found), copy)
    return Build(name, copy)


def put(program, to):
    """Copies a program; `to` is complete or absent."""
    part = to.with_suffix(".part")
    shutil.copy2(program, part)
    part.rename(to)


# ---- runs ----------------------------------------------------------------------------------------


class Unable(Exception):
    """A run without a result. `usage`: the build does not have these options."""

    def __init__(self, why, usage=False):
        super().__init__(why)
        self.usage = usage


def measure(build, quantity, plan):
    """One run: its report, and the value of each placement."""
    command = [str(build.program), "bench", *quantity.arguments, *plan, "--json", "-"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_RUN_S)
    except subprocess.TimeoutExpired:
        raise Unable(f"no result after {LONGEST_RUN_S} s") from None
    try:
        # A run beside other load has a result and fails.
        report = json.loads(ran.stdout)
    except json.JSONDecodeError:
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        raise Unable(lines[0] if lines else f"status {ran.returncode}", ran.returncode == 2) from None
    return report, values(report, quantity.field)


def values(report, field):
    """The value of each placement of a report."""
    return {r["placement"]: r[field] for r in report["results"] if r.get(field) is not None}


class Turns:
    """The values of all runs, and the builds that do not take part in a quantity."""

    def __init__(self):
        # By quantity: for each turn a dictionary of builds, with a dictionary of placements.
        self.values = {}
        self.skipped = {}
        self.failures = {}
        self.environment = None
        self.done = 0
        self.interrupted = False

    def takes_part(self, key, name):
        return (key, name) not in self.skipped

    def failed(self, key, name, error):
        count = self.failures[key, name] = self.failures.get((key, name), 0) + 1
        if error.usage or count >= MOST_FAILURES:
            self.skipped[key, name] = str(error)

    def add(self, key, turn):
        self.values.setdefault(key, []).append(turn)

    def placements(self, key):
        found = {place for turn in self.values.get(key, []) for of in turn.values() for place in of}
        return sorted(found, key=lambda place: (place != "near", place))

    def of(self, key, name, placement):
        """The values of a build."""
        turns = self.values.get(key, [])
        return [turn[name][placement] for turn in turns if placement in turn.get(name, {})]

    def ratios(self, key, new, old, placement):
        """new / old, of the turns in which both have the placement."""
        turns = self.values.get(key, [])
        pairs = [(turn.get(new, {}).get(placement), turn.get(old, {}).get(placement)) for turn in turns]
        return [new / old for new, old in pairs if new and old]


def take_turns(builds, quantities, turns, plan, result, run=measure, shuffle=random.Random(1).shuffle, progress=None):
    """Runs all builds for `turns` turns, or until it is interrupted."""
    progress = progress or Progress(turns)
    try:
        for turn in range(turns):
            for quantity in quantities:
                seen = {}
                order = [build for build in builds if result.takes_part(quantity.key, build.name)]
                shuffle(order)
                for build in order:
                    progress.show(turn, f"{quantity.title}, {build.name}")
                    try:
                        report, seen[build.name] = run(build, quantity, plan)
                        result.failures.pop((quantity.key, build.name), None)
                        result.environment = report.get("environment")
                    except Unable as error:
                        result.failed(quantity.key, build.name, error)
                result.add(quantity.key, seen)
            result.done = turn + 1
    except KeyboardInterrupt:
        result.interrupted = True


# ---- results -------------------------------------------------------------------------------------


def interval(values):
    """The 95 % interval of the median, or the range if there are fewer than six values."""
    ordered, count = sorted(values), len(values)
    if count < 6:
        return ordered[0], ordered[-1], "range"
    # Order statistics: the distribution of the values does not matter.
    tail, rank, chance = 0.0, 0, 0.5**count
    for k in range(count // 2):
        tail += chance
        if tail > 0.025:
            break
        rank = k
        chance = chance * (count - k) / (k + 1)
    return ordered[rank], ordered[count - 1 - rank], "95 %"


def summary(values):
    low, high, kind = interval(values)
    return {"median": statistics.median(values), "low": low, "high": high, "interval": kind, "turns": len(values)}


def rows(builds, quantities, result):
    """For each quantity and placement the values of all builds and the ratios to the last one's."""
    new, olds = builds[-1], builds[:-1]
    found = []
    for quantity in quantities:
        for placement in result.placements(quantity.key):
            values = {b.name: result.of(quantity.key, b.name, placement) for b in builds}
            ratios = {b.name: result.ratios(quantity.key, new.name, b.name, placement) for b in olds}
            found.append({
                "quantity": quantity.key,
                "placement": placement,
                "values": {name: summary(of) for name, of in values.items() if of},
                "ratios": {name: summary(of) for name, of in ratios.items() if of},
            })
    return found


def table(builds, quantities, found):
    """The rows as a table in Markdown."""
    by_key = {quantity.key: quantity for quantity in quantities}
    olds = builds[:-1]
    heads = ["", "cores", *(b.name for b in builds), *(f"ratio to {b.name}" for b in olds), "turns"]
    lines = [heads, ["---"] * 2 + ["---:"] * (len(heads) - 2)]
    for row in found:
        quantity = by_key[row["quantity"]]
        cells = [quantity.title, row["placement"]]
        cells += [quantity.show(of["median"]) if (of := row["values"].get(b.name)) else "" for b in builds]
        ratios = [row["ratios"].get(b.name) for b in olds]
        cells += [f"{of['median']:.3f} [{of['low']:.3f}, {of['high']:.3f}]" if of else "" for of in ratios]
        counts = [of["turns"] for of in ratios if of]
        lines.append(cells + ["/".join(map(str, sorted(set(counts)))) or "0"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def notes(quantities, result):
    """A line for each build that does not take part in a quantity."""
    titles = {quantity.key: quantity.title for quantity in quantities}
    return [f"left out: {titles[key]}, {name}: {why}" for (key, name), why in result.skipped.items()]


def tell(text):
    print(text, file=sys.stderr, flush=True)


class Progress:
    """The run of now on a terminal; elsewhere a line for each turn."""

    def __init__(self, turns):
        self.turns, self.start, self.told = turns, time.monotonic(), None

    def show(self, turn, run):
        text = f"turn {turn + 1} of {self.turns}, {time.monotonic() - self.start:.0f} s"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}: {run}", end="", file=sys.stderr, flush=True)
        elif self.told != turn:
            self.told = turn
            tell(text)


# ---- command line --------------------------------------------------------------------------------


def arguments(given):
    parser = argparse.ArgumentParser(
        prog="scripts/speed.sh",
        description=__doc__,
        epilog="Without --against, scripts/speed.sh [--quick] OUTDIR measures the tables of docs/performance.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", metavar="COMMIT", action="append", default=[], help="a commit to compare with; several take part in the same turns")
    parser.add_argument("--quick", action="store_true", help="5 turns instead of 30: a look, not a claim")
    parser.add_argument("--turns", metavar="N", type=int, help="turns, each a run of every quantity with every build")
    only = [quantity.key for quantity in QUANTITIES]
    parser.add_argument("--only", metavar="KEY", action="append", choices=only, help="measure this quantity only; may be repeated: " + ", ".join(only))
    parser.add_argument("--json", metavar="PATH", type=Path, help="also write all values and ratios to this file")
    parser.add_argument("--self-test", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(given)
    if parsed.turns is not None and not 1 <= parsed.turns <= 10_000:
        parser.error("--turns is 1 to 10000")
    if not parsed.self_test and not parsed.against:
        parser.error("--against COMMIT is missing")
    return parsed


def main():
    parsed = arguments(sys.argv[1:])
    if parsed.self_test:
        return self_test()
    quantities = [q for q in QUANTITIES if not parsed.only or q.key in parsed.only]
    turns = parsed.turns or (5 if parsed.quick else 30)
    plan = ["--quick", "--pairs", "4", "--max-time", "300ms"]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        builds = []
        for commit in parsed.against:
            build = of_commit(commit)
            if build not in builds:
                builds.append(build)
        builds.append(of_this_tree(folder))
        result = Turns()
        take_turns(builds, quantities, turns, plan, result)
    if sys.stderr.isatty():
        tell("")
    found = rows(builds, quantities, result)
    if result.environment:
        print(machine(result.environment))
    loads = (load, os.getloadavg()[0])
    interrupted = ", interrupted" if result.interrupted else ""
    print(f"{result.done} turns{interrupted}; load average {loads[0]:.1f} before, {loads[1]:.1f} after\n")
    print(table(builds, quantities, found))
    for note in notes(quantities, result):
        print(f"\n{note}")
    if parsed.json:
        skipped = [{"quantity": key, "build": name, "why": why} for (key, name), why in result.skipped.items()]
        whole = {
            "builds": [build.name for build in builds],
            "turns": result.done,
            "load_average": loads,
            "results": found,
            "skipped": skipped,
            "environment": result.environment,
        }
        parsed.json.write_text(json.dumps(whole, indent=2) + "\n")
    if not found:
        sys.exit("no quantity was measured")


# ---- self-test -----------------------------------------------------------------------------------


class Silent:
    def show(self, *_):
        pass


def self_test():
    def take(builds, quantities, turns, result, run, shuffle=lambda order: None):
        take_turns(builds, quantities, turns, [], result, run, shuffle, Silent())

    old, new = Build("old", Path("old")), Build("this tree", Path("new"))
    latency, udp = QUANTITIES[0], QUANTITIES[-1]
    runs = []

    def run(build, quantity, _):
        """Placements change in every second turn, and `old` does not know the second quantity."""
        runs.append((quantity.key, build.name))
        if quantity is udp and build is old:
            raise Unable("error: unexpected argument", usage=True)
        turn = len([r for r in runs if r == (quantity.key, build.name)])
        place = "near" if turn % 2 else "far"
        value = (100.0 if build is old else 80.0) * (1 if place == "near" else 3) + turn
        report = {"results": [{"placement": place, quantity.field: value}], "environment": {"x": 1}}
        return report, values(report, quantity.field)

    result = Turns()
    take([old, new], [latency, udp], 12, result, run, lambda order: order.reverse())
    assert result.done == 12 and result.environment == {"x": 1}
    assert result.placements(latency.key) == ["near", "far"]
    near = result.ratios(latency.key, "this tree", "old", "near")
    assert len(near) == 6 and all(0.79 < ratio < 0.83 for ratio in near), near
    # What a build does not know is tried once, named, and measured for the others.
    assert runs.count((udp.key, "old")) == 1 and runs.count((udp.key, "this tree")) == 12
    assert notes([latency, udp], result) == ["left out: UDP, p50, old: error: unexpected argument"]
    found = rows([old, new], [latency, udp], result)
    assert [(row["quantity"], row["placement"]) for row in found] == [
        (latency.key, "near"), (latency.key, "far"), (udp.key, "near"), (udp.key, "far"),
    ]
    assert found[0]["ratios"]["old"]["turns"] == 6 and found[2]["ratios"] == {}
    lines = table([old, new], [latency, udp], found).splitlines()
    assert lines[0] == "|  | cores | old | this tree | ratio to old | turns |", lines[0]
    assert lines[2].startswith("| shared memory, p50 | near | 106 ns | 86 ns | 0.811 ["), lines[2]
    assert lines[4].endswith("|  | 86 ns |  | 0 |"), lines[4]

    # A run that fails for another reason is tried again; the third failure in a row ends it.
    def failing(build, quantity, _):
        if build is old:
            raise Unable("no result")
        return run(build, quantity, _)

    runs, result = [], Turns()
    take([old, new], [latency], 5, result, failing)
    assert result.skipped == {(latency.key, "old"): "no result"}
    assert result.failures[latency.key, "old"] == MOST_FAILURES

    # An interruption keeps the turns before it.
    def interrupted(build, quantity, plan):
        if len(runs) == 4:
            raise KeyboardInterrupt
        return run(build, quantity, plan)

    runs, result = [], Turns()
    take([old, new], [latency], 9, result, interrupted)
    assert result.done == 2 and result.interrupted and len(result.of(latency.key, "old", "near")) == 1

    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0, "range")
    # By tables of the sign test: ranks 1 of 6, 3 of 12 and 10 of 30, counted from 1.
    ranks = [(6, 1), (12, 3), (30, 10)]
    for count, rank in ranks:
        low, high, kind = interval([float(n) for n in range(1, count + 1)])
        assert (low, high, kind) == (rank, count + 1 - rank, "95 %"), (count, low, high)
    assert values({"results": [{"placement": "far"}, {"placement": "near", "a": 2}]}, "a") == {"near": 2}
    assert arguments(["--against", "a", "--against", "b", "--quick"]).against == ["a", "b"]
    print("the self-test passes")


if __name__ == "__main__":
    main()
