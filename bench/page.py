"""docs/performance.md: the figures on disk between sentences that people wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import record
from bench.aims import AIMS, Records
from bench.charts import Bar, bar_chart
from bench.crowd import AIMS as CROWD_AIMS
from bench.growth import fitted_exponent
from bench.record import BASELINE, LOOP, NAMES, OTHERS, Row, by_shape
from bench.scale import LIMITS_SECONDS
from bench.tidb import NATIVE

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
BEGIN, END = "<!-- figures: {} -->", "<!-- end of figures -->"
KV = "kv"
TURNS = ("put", "batch put", "get", "miss", "scan")
KV_VERBS = (
    "put", "batch put", "batch()", "get", "miss", "scan", "purge", "purge, verified",
)  # fmt: skip


def write() -> None:
    """Replace what stands between the marks; everything else on the pages is left as it is."""
    records = {engine: record.load(engine) for engine in (*NAMES, *OTHERS, KV)}
    figures = {
        f"{engine} {part}": render(engine, records[engine])
        for engine in (*NAMES, *OTHERS)
        for part, render in RENDERERS.items()
        if part in records[engine]
    }
    _fill(DOCS / "performance.md", figures | {"aims": _aims(records)})
    _fill(HOME / "README.md", {"summary": _summary(records)})
    if records[KV]:
        _fill(DOCS / "performance-kv.md", {KV: _kv(records[KV]["all"])})


def _fill(path: Path, figures: Mapping[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for name, body in figures.items():
        text = _replaced(text, name, body)
    path.write_text(text, encoding="utf-8")


def _replaced(text: str, name: str, body: str) -> str:
    begin = BEGIN.format(name)
    if begin not in text:
        return text
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n{body.strip()}\n{END}{after}"


def shape_words(shape: Row) -> str:
    return (
        f"{shape['rows']:,} rows, {shape['expired_percent']:g} % expired"
        + ("" if shape["scattered"] else " at the old end")
        + f", {shape['key']} key, {shape['indexes']} secondary index{'es' if shape['indexes'] != 1 else ''}"
        + (", index on the expiry" if shape["expiry_index"] else "")
        + (", BRIN index on the expiry" if shape.get("brin") else "")
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _ratio(row: Row, other: Row | None) -> str:
    return "-" if other is None else f"{other['seconds'] / row['seconds']:.2f}x"


def _base(engine: str, measured: Row) -> str:
    parts = []
    for text, contenders in by_shape(measured["base"]["found"]).items():
        shape = json.loads(text)
        whole, loop = contenders.get(BASELINE), contenders.get(LOOP)
        ordered = sorted(contenders.values(), key=lambda row: float(row["seconds"]))
        rows = [
            [
                row["contender"],
                f"{row['rows_per_second']:,}",
                _ratio(row, whole),
                _ratio(row, loop),
                f"{row['spread'][0]:.2f} to {row['spread'][1]:.2f}",
                "-" if row["hold_p50_ms"] is None else f"{row['hold_p50_ms']} / {row['hold_p95_ms']}",
            ]
            for row in ordered
        ]
        header = ["way", "rows/s", "of one DELETE", "of the references' loop", "spread", "transaction ms, p50 / p95"]
        parts.append(f"{shape_words(shape)}:\n\n{table(header, rows)}")
        name = f"{engine}-{shape['key']}.svg"
        _draw(name, f"{NAMES[engine]}, {shape['key']} key: rows deleted per second", ordered)
        parts.append(f"![rows per second](performance/{name})")
    missing = measured.get("missing") or []
    parts += [f"Not available on the measuring machine: {', '.join(missing)}."] if missing else []
    return "\n\n".join([*parts, _under(measured["base"])])


def _busy(engine: str, measured: Row) -> str:
    return _against(measured, "busy", LOOP, "of the references' loop")


def _stock(engine: str, measured: Row) -> str:
    return _against(measured, "stock", LOOP, "of the references' loop")


def _full(engine: str, measured: Row) -> str:
    return _against(measured, "full", LOOP, "of the references' loop")


def _native(engine: str, measured: Row) -> str:
    return _against(measured, "native", NATIVE, "of TiDB's own TTL")


def _against(measured: Row, part: str, other: str, words: str) -> str:
    """Each way against one DELETE and against one other."""
    parts = []
    for text, contenders in by_shape(measured[part]["found"]).items():
        ordered = sorted(contenders.values(), key=lambda row: float(row["seconds"]))
        rows = [
            [
                row["contender"],
                f"{row['rows_per_second']:,}",
                _ratio(row, contenders.get(BASELINE)),
                _ratio(row, contenders.get(other)),
                f"{row['spread'][0]:.2f} to {row['spread'][1]:.2f}",
            ]
            for row in ordered
        ]
        header = ["way", "rows/s", "of one DELETE", words, "spread"]
        parts.append(f"{measured['server']}, {shape_words(json.loads(text))}:\n\n{table(header, rows)}")
    return "\n\n".join([*parts, _under(measured[part])])


def _draw(name: str, title: str, rows: Sequence[Row]) -> None:
    bars = [
        Bar(
            label=row["contender"],
            value=row["rows_per_second"],
            text=f"{row['rows_per_second']:,}",
            low=row["rows_per_second"] * row["spread"][0],
            high=row["rows_per_second"] * row["spread"][1],
        )
        for row in rows
    ]
    (record.FOLDER / name).write_text(bar_chart(title, bars), encoding="utf-8")


def _axes(engine: str, measured: Row) -> str:
    rows = []
    for text, contenders in by_shape(measured["axes"]["found"]).items():
        ours, whole, loop = (contenders.get(name) for name in ("Lapse", BASELINE, LOOP))
        assert ours is not None
        rows.append(
            [shape_words(json.loads(text)), f"{ours['rows_per_second']:,}", _ratio(ours, whole), _ratio(ours, loop)]
        )
    header = ["shape", "Lapse, rows/s", "of one DELETE", "of the references' loop"]
    return f"{table(header, rows)}\n\n{_under(measured['axes'])}"


def _idle(engine: str, measured: Row) -> str:
    rows = []
    for text, contenders in by_shape(measured["idle"]["found"]).items():
        ours, count = contenders["Lapse"], contenders["SELECT count(*)"]
        rows.append(
            [
                shape_words(json.loads(text)),
                f"{1000 * count['seconds']:.0f} ms",
                f"{1000 * ours['seconds']:.0f} ms",
                f"{ours['seconds'] / count['seconds']:.2f}x",
            ]
        )
    header = ["shape", "SELECT count(*) with the condition", "a whole run of Lapse", "ratio"]
    return f"{table(header, rows)}\n\n{_under(measured['idle'])}"


def _skip(engine: str, measured: Row) -> str:
    rows = []
    blind: dict[str, float] = {}
    for text, contenders in by_shape(measured["skip"]["found"]).items():
        shape = json.loads(text)
        ours, whole = (contenders[name]["seconds"] for name in ("Lapse", BASELINE))
        blind = blind or {"Lapse": ours, BASELINE: whole}
        rows.append(
            [
                shape_words(shape),
                f"{1000 * whole:.0f} ms ({whole / blind[BASELINE]:.2f}x)",
                f"{1000 * ours:.0f} ms ({ours / blind['Lapse']:.2f}x)",
            ]
        )
    header = ["shape", "one DELETE (of the time without an index)", "a whole run of Lapse (likewise)"]
    return f"{table(header, rows)}\n\n{_under(measured['skip'])}"


def _growing(engine: str, measured: Row) -> str:
    found = measured["growing"]["found"]
    tenths = [row for row in found if row["shape"]["expired_percent"] == 10]
    shares = [row for row in found if row["shape"]["expired_percent"] != 10]
    parts = [
        _grown("rows, a tenth of them expired", tenths, [row["shape"]["rows"] for row in tenths]),
        _grown(f"expired of {shares[0]['shape']['rows']:,} rows", shares, [row["expired"] for row in shares]),
    ]
    return "\n\n".join([*parts, _under(measured["growing"])])


def _grown(of: str, found: Sequence[Row], sizes: Sequence[int]) -> str:
    """One line per way, one column per size."""
    groups = list(by_shape(found).values())
    rows = []
    for way in (BASELINE, LOOP, "Lapse"):
        taken = [(contenders[way], contenders[BASELINE]) for contenders in groups]
        exponent = fitted_exponent([(row["expired"], row["seconds"]) for row, _ in taken])
        cells = [f"{row['seconds']:.2f} s ({_ratio(row, whole)})" for row, whole in taken]
        rows.append([way, *cells, f"{exponent:.2f}"])
    return table([of, *(f"{size:,}" for size in dict.fromkeys(sizes)), "exponent"], rows)


def _archive(engine: str, measured: Row) -> str:
    shapes = by_shape(measured["archive"]["found"])
    return "\n\n".join([*map(_archive_table, shapes.values()), _under(measured["archive"])])


def _archive_table(contenders: Mapping[str, Row]) -> str:
    plain = contenders["Lapse"]
    rows = [
        [
            name if row is not plain else "Lapse, archiving nothing",
            f"{row['rows_per_second']:,}",
            _ratio(row, plain),
            "-" if row["archive_bytes"] is None else f"{row['archive_bytes'] / max(row['expired'], 1):.0f}",
        ]
        for name, row in contenders.items()
    ]
    header = ["way", "rows/s", "of deleting alone", "bytes per row in the archive"]
    return f"{shape_words(plain['shape'])}:\n\n{table(header, rows)}"


def _cost(engine: str, measured: Row) -> str:
    found = {(row["verb"], row["variant"]): row["rows_per_second"] for row in measured["cost"]["found"]}
    rows = []
    for verb in dict.fromkeys(verb for verb, _ in found):
        bare = found[verb, "bare"]
        rows.append(
            [verb, f"{bare:,}", f"{found[verb, 'expires_at'] / bare:.2f}x", f"{found[verb, 'managed'] / bare:.2f}x"]
        )
    header = ["", "bare table, rows/s", "with a column of one's own", "with Lapse's managed column"]
    return f"{table(header, rows)}\n\n{_under(measured['cost'])}"


def _proof(engine: str, measured: Row) -> str:
    rows = [
        [
            f"{row['variant']}, {row['key']} key, {row['expired_percent']:g} % expired",
            f"{row['seconds']:.2f}x",
            f"{row['processor']:.2f}x",
        ]
        for row in measured["proof"]["found"]
    ]
    header = ["a run with", "time, of one without", "processor time, Lapse and server"]
    return f"{table(header, rows)}\n\n{_under(measured['proof'])}"


def _scale(engine: str, measured: Row) -> str:
    found = measured["scale"]["found"]
    sizes = sorted({row["policies"] for row in found})
    rows = []
    for name in dict.fromkeys(row["name"] for row in found):
        taken = {row["policies"]: row for row in found if row["name"] == name}
        limit = LIMITS_SECONDS.get(name)
        cells = [
            f"{1000 * row['seconds']:,.0f} ms ({1000 * row['processor_seconds']:,.0f}), {row['statements']:,}"
            if (row := taken.get(size))
            else "-"
            for size in sizes
        ]
        exponent = fitted_exponent([(size, max(row["processor_seconds"], 0.001)) for size, row in taken.items()])
        most = max(taken)
        aim = "-" if limit is None else f"{limit:g} s" if most == sizes[-1] else f"{limit:g} s with {most:,}"
        rows.append([name, *cells, f"{exponent:.2f}", aim])
    header = [
        "time (of the processor), statements",
        *(f"{size:,} policies" for size in sizes),
        "exponent",
        "aim with 10,000",
    ]
    return f"{table(header, rows)}\n\n{_under(measured['scale'])}"


def _crowd(engine: str, measured: Row) -> str:
    rows = [
        [
            name,
            f"{figure:,.1f} {aim.unit}",
            f"at {'least' if aim.at_least else 'most'} {aim.value:g} {aim.unit}",
            "yes" if aim.is_met_by(figure) else "no",
        ]
        for name, figure in measured["crowd"]["found"].items()
        if (aim := CROWD_AIMS[name])
    ]
    return f"{table(['', 'measured', 'aim', 'reached'], rows)}\n\n{_under(measured['crowd'])}"


def _foreground(engine: str, measured: Row, part: str = "foreground") -> str:
    found = measured[part]["found"]
    alone = next(row for row in found["contenders"] if row["contender"] == "no job")
    rows = [
        [
            row["contender"],
            f"{row['p50_ms']:.1f}",
            f"{row['p95_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['p99_ms'] / alone['p99_ms']:.1f}x",
            f"{row['rows_per_second']:,}" if row["rows_per_second"] else "-",
        ]
        for row in found["contenders"]
    ]
    bars = [
        Bar(label=row["contender"], value=row["p99_ms"], text=f"{row['p99_ms']:.1f} ms") for row in found["contenders"]
    ]
    name = f"{engine}-{part}.svg"
    title = f"{NAMES[engine]}: p99 of the application's transactions, in milliseconds"
    (record.FOLDER / name).write_text(bar_chart(title, bars), encoding="utf-8")
    header = ["while deleting by", "p50 ms", "p95 ms", "p99 ms", "p99 of no job", "rows/s"]
    words = f"{found['transactions_per_second']:,} transactions/s, {found['expired']:,} expired rows:"
    return f"{words}\n\n{table(header, rows)}\n\n![p99](performance/{name})\n\n{_under(measured[part])}"


def _stock_foreground(engine: str, measured: Row) -> str:
    return _foreground(engine, measured, "stock-foreground")


def _summary(records: Records) -> str:
    """For the front page: the base shape of each engine, against what needs nothing but SQL."""
    rows = []
    for engine, name in NAMES.items():
        found = records[engine].get("base", {"found": []})["found"]
        for text, contenders in list(by_shape(found).items())[:1]:
            shape, ours = json.loads(text), contenders["Lapse"]
            ratios = [_ratio(ours, contenders[way]) for way in (BASELINE, LOOP, "LIMIT loop")]
            words = f"{name}, {shape['rows']:,} rows, {shape['expired_percent']:g} % expired"
            rows.append([words, *ratios, f"{ours['hold_p95_ms']:.0f} ms"])
    loop = "of the loop in CockroachDB's and TiDB's documents"
    return table(["speed of Lapse", "of one DELETE", loop, "of a `LIMIT` loop", "a transaction, p95"], rows)


def _aims(records: Records) -> str:
    rows = [row for aim in AIMS if (row := aim.row(records)) is not None]
    return table(["", "aim", "measured", "reached"], rows)


def _kv(measured: Row) -> str:
    found = measured["found"]
    speeds = [
        [name, *(f"{row[verb]:,.0f}" if verb in row else "" for verb in KV_VERBS)]
        for name, row in found["rows_per_second"].items()
    ]
    compared = [verb for verb in KV_VERBS if any(verb in row for row in found["ratios"].values())]
    ratios = [
        [name, *(_both(found["ratios_of_processor_time"][name], row, verb) for verb in compared)]
        for name, row in found["ratios"].items()
    ]
    purges = [[name, f"{figure:g}"] for name, figure in found["purges"].items()]
    words, turns = f"{found['rows']:,} rows, {found['rounds']} rounds:", found["by_turns"]
    parts = [
        words,
        table(["rows per second", *KV_VERBS], speeds),
        table(["processor time (wall time) of", *compared], ratios),
        "RocksDB in turns of 1,000 rows, all stores open at once: processor time of the bare engine against each.",
        table(["", *TURNS], [[name, *(f"{row[verb]:.2f}x" for verb in TURNS)] for name, row in turns.items()]),
        f"RocksDB, {found['rows'] * 10:,} rows: processor time of a purge against deletes by hand, and bytes.",
        table(["", "against by hand, or bare"], purges),
        _under(measured),
    ]
    return "\n\n".join(parts)


def _both(processor: Row, wall: Row, verb: str) -> str:
    return f"{processor[verb]:.2f}x ({wall[verb]:.2f}x)" if verb in wall else ""


def _under(part: Row) -> str:
    under = part["under"]
    return f"<sub>{under['cpus']} cores, load average {under['load_average']} at the end of the measurement.</sub>"


RENDERERS = {
    "base": _base,
    "axes": _axes,
    "idle": _idle,
    "skip": _skip,
    "growing": _growing,
    "cost": _cost,
    "proof": _proof,
    "foreground": _foreground,
    "scale": _scale,
    "crowd": _crowd,
    "archive": _archive,
    "stock": _stock,
    "stock-foreground": _stock_foreground,
    "full": _full,
    "busy": _busy,
    "native": _native,
}
