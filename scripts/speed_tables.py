#!/usr/bin/env python3
"""Markdown tables of the reports that `scripts/speed.sh` leaves in a directory.

    scripts/speed_tables.py OUTDIR

Needs python3 and nothing besides its own library. A figure is the median over windows; brackets are
the 95 % interval of that median, parentheses the range where there were too few windows for one.
"""

import json
import pathlib
import sys


def digits(value):
    """Three digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def time(ns):
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= factor:
            return f"{digits(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


def scale(value, unit):
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{digits(value / factor)} {prefix}{unit}"
    return f"{digits(value)} {unit}"


def rate(value):
    return scale(value, "/s")


def bits(value):
    return scale(value, "bit/s")


def size(value):
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= factor and value % factor == 0:
            return f"{value // factor:.0f} {unit}"
    return f"{value:,.0f} B"


def plain(value):
    return f"{value:.2f}"


def share(value):
    return f"{value * 100:.0f} %"


def word(value):
    return str(value)


# By benchmark: heading, key, how it is written. A column that no result has is left out.
RATE = ("rate", "rate_rps", rate)
RATIO = ("of raw", "ratio", plain)
COLUMNS = {
    "latency": [
        ("p50", "latency_p50_ns", time),
        ("raw p50", "raw_p50_ns", time),
        ("p50 - raw", "difference_ns", time),
        ("p50 / raw", "ratio", plain),
        ("p90", "latency_p90_ns", time),
        ("p99", "latency_p99_ns", time),
        ("p99.9", "latency_p999_ns", time),
        ("p99.99", "latency_p9999_ns", time),
        ("raw p99", "raw_p99_ns", time),
        ("raw p99.9", "raw_p999_ns", time),
        ("raw p99.99", "raw_p9999_ns", time),
    ],
    "rate": [("B", "batch", word), RATE, ("raw packets", "raw_rate_pps", rate), RATIO],
    "bandwidth": [
        ("request", "request_bytes", size),
        ("goodput", "goodput_bps", bits),
        ("raw", "raw_goodput_bps", bits),
        RATIO,
        ("memcpy", "memcpy_bps", bits),
        ("of memcpy", "share_of_memcpy", share),
    ],
    "sessions": [
        ("sessions", "sessions", word),
        RATE,
        ("of the rate with 8", "of_8_sessions", share),
        ("connects", "connects_per_s", rate),
        ("client, idle session", "client_bytes_per_session", size),
        ("server, idle session", "server_bytes_per_session", size),
    ],
    "credits": [
        ("C", "credits", word),
        ("one call, p50", "latency_p50_ns", time),
        ("60 calls", "rate_rps", rate),
        ("one of 8 MiB", "goodput_bps", bits),
    ],
    "txqueue": [
        ("burst at most", "tx_burst", word),
        RATE,
        ("of the longest", "of_longest", share),
    ],
    "factors": [
        ("switched off, one after another", "switched_off", word),
        RATE,
        ("of the step before", "of_step_before", share),
        ("of everything on", "of_everything_on", share),
        ("paper: rate", "paper_rate_rps", rate),
        ("paper: of the step before", "paper_of_step_before", share),
    ],
    "threads": [
        ("threads", "threads", word),
        RATE,
        ("of each", "rate_per_thread_rps", rate),
        ("times one thread", "times_one_thread", plain),
        ("resident, a thread", "resident_bytes_per_thread", size),
    ],
}
UNITS = {key: show for columns in COLUMNS.values() for _, key, show in columns}
# In the order of the script; others follow by name.
ORDER = ["latency", "rate", "rate-symmetric", "bandwidth", "bandwidth-1k", "sessions",
         "sessions-100k", "credits", "txqueue", "factors", "threads"]


def cell(result, key, show):
    value = result.get(key)
    if value is None:
        return ""
    text = show(value)
    ends = [result.get(key + end) for end in ("_ci_low", "_ci_high")]
    if None not in ends:
        return f"{text} [{show(ends[0])} - {show(ends[1])}]"
    ends = [result.get(key + end) for end in ("_min", "_max")]
    if None not in ends and ends[0] != ends[1]:
        return f"{text} ({show(ends[0])} - {show(ends[1])})"
    return text


def wanted(result):
    """What is wanted of a result, and whether all of that is reached."""
    parts = []
    for key, value in result.items():
        name = key.removeprefix("wanted_")
        if name == key or name == "reached":
            continue
        parts.append(f"{name} {UNITS.get(name, plain)(value)}")
    if not parts:
        return ""
    return ", ".join(parts) + (": reached" if result.get("wanted_reached") else ": missed")


def table(report):
    results = report["results"]
    columns = [c for c in COLUMNS[report["bench"]] if any(r.get(c[1]) is not None for r in results)]
    goals = [wanted(result) for result in results]
    heads = [head for head, _, _ in columns] + ["cores", "windows"] + ["wanted"] * any(goals)
    rows = [heads, ["---"] * len(heads)]
    for result, goal in zip(results, goals):
        row = [cell(result, key, show) for _, key, show in columns]
        row += [result["placement"], word(result["windows"])]
        rows.append(row + [goal] * any(goals))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def conditions(config):
    """The settings that a reader needs to read a table."""
    known = [
        ("symmetric", lambda yes: "both sides call" if yes else None),
        ("server_copies", lambda yes: None if yes else "without the server's copy"),
        ("sessions", lambda n: f"{n} sessions" if isinstance(n, int) else None),
        ("in_flight", lambda n: f"{n} in flight"),
        ("batch", lambda n: f"B = {n}" if len(set(config.get("batches", [n]))) == 1 else None),
        ("max_frame", lambda n: f"frames of {n} B"),
        ("data_per_packet", lambda n: f"{n} B of data in a packet"),
        ("credits", lambda n: f"{n} credits" if "credits_granted" not in config else None),
        ("raw_frame_bytes", lambda n: f"raw frames of {n} B"),
        ("raw_train_frames", lambda n: f"in bursts of {n}"),
        ("raw_trains_in_flight", lambda n: f"{n} bursts in flight"),
        ("window_ms", lambda n: f"windows of {n:g} ms"),
    ]
    values = [say(config[key]) for key, say in known if config.get(key) is not None]
    return ", ".join(value for value in values if value)


def machine(environment):
    kind = ", virtual" if environment.get("hypervisor") else ""
    cpu = environment.get("cpu_model") or "unknown processor"
    if environment.get("cpu_generation"):
        cpu += f" ({environment['cpu_generation']})"
    cores, kernel = environment["cpus_usable"], environment["kernel"]
    version = environment["courser_version"]
    return f"{cpu}{kind}, {cores} cores, Linux {kernel}; courser {version}"


def place(path):
    """Shared memory first, then in the order of the script."""
    transport, _, name = path.stem.partition("-")
    at = ORDER.index(name) if name in ORDER else len(ORDER)
    return (transport != "shm", transport, at, name)


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} OUTDIR")
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*-*.json"), key=place)
    if not paths:
        sys.exit(f"no reports in {sys.argv[1]}")
    reports = [(path.stem, json.loads(path.read_text())) for path in paths]
    print(machine(reports[-1][1]["environment"]))
    for name, report in reports:
        if report["bench"] not in COLUMNS:
            continue
        dropped = report["results"][0]["windows_dropped"] if report["results"] else 0
        print(f"\n### {name}\n\n{conditions(report['config'])}; {dropped} windows dropped\n")
        print(table(report))


if __name__ == "__main__":
    main()
