"""A certificate as one page that a person can read and print; the signed file beside it is what counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 1.5rem }
table { border-collapse: collapse; width: 100%; margin-top: .6rem }
th, td { border: 1px solid #bbb; padding: .3rem .5rem; text-align: left; vertical-align: top }
td { overflow-wrap: break-word }
th { white-space: nowrap }
.verdict { border: 2px solid; padding: .6rem 1rem; font-weight: 600 } code { overflow-wrap: anywhere }
@media print { body { margin: 0; font-size: 11px } }
"""


def page(statement: Mapping[str, Any], file: str, public_key: str) -> str:
    """`file` is the name of the signed file."""
    tables = "".join(_table(each) for each in statement["tables"])
    made = statement["made_by"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Certificate of deletion</title><style>{_STYLE}</style></head><body>
<h1>Certificate of deletion</h1>
<p>Database <code>{_text(statement["database"])}</code>,
from {_time(statement["from"])} to {_time(statement["to"])}.</p>
<p class="verdict">{_text(_verdict(statement))}</p>
{tables}
<h2>The record</h2>
<p>{statement["ledger"]["entries"]} entries of the ledger were verified. Its head was
<code>{_text(statement["ledger"]["head"])}</code>.</p>
<p>Made at {_time(statement["made_at"])} by {_text(_who(made))} with Lapse {_text(statement["lapse"])},
signed with the key
<code>{_text(public_key)}</code>. This page is for reading: the signed statement is <code>{_text(file)}</code>, and
<code>lapse certificate --verify {_text(file)} --public-key FILE</code> checks it.</p>
</body></html>
"""


def _verdict(statement: Mapping[str, Any]) -> str:
    overdue = sum(each["now"]["overdue"] for each in statement["tables"] if each["now"])
    stuck = sum(each["now"]["cannot_be_deleted"] for each in statement["tables"] if each["now"])
    also = f" {stuck:,} that should be gone cannot be deleted, as other rows refer to them." if stuck else ""
    if overdue:
        return f"{overdue:,} expired rows that should be gone are still there.{also}"
    return f"No expired row that should be gone, and could be deleted, was left when this was made.{also}"


def _table(each: Mapping[str, Any]) -> str:
    name = ".".join(part for part in (each["schema"], each["table"]) if part)
    jobs = ", ".join(f"{count} {status}" for status, count in each["jobs"].items()) or "none"
    now = each["now"]
    left = (
        "the table has no policy now"
        if now is None
        else f"{now['expired']:,} of {now['rows']:,} rows have expired, {now['overdue']:,} of them longer ago than"
        f" {now['delete_within']}; {now['cannot_be_deleted']:,} cannot be deleted"
    )
    facts = [
        ("Rows deleted", f"{each['deleted']:,}, of which {each['archived']:,} are kept in an archive"),
        ("Rows restored from an archive", f"{each['restored']:,}"),
        ("Jobs that ended", jobs),
        ("Longest time without a finished job", f"{each['longest_without_job_seconds'] / 3600:,.1f} hours"),
        ("Left when this was made", left),
    ]
    promised = [(str(p["version"]), _words(p["policy"]), _span(p), _who(p["declared_by"])) for p in each["policies"]]
    held = [(str(h["hold"]), h["where"] or "all rows", _kept(h), h["reason"] or "") for h in each["holds"]]
    parts = [f"<h2>Table {_text(name)}</h2>", _grid((), facts)]
    parts += [_grid(("Version", "What was promised", "When", "By"), promised)] if promised else []
    parts += [_grid(("Hold", "Rows", "When", "Reason"), held)] if held else []
    return "\n".join(parts)


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "<tr>" + "".join(f"<th>{_text(each)}</th>" for each in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{_text(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _words(policy: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted(policy.items()))


def _span(promised: Mapping[str, Any]) -> str:
    return f"{_short(promised['from'])} – {_short(promised['to'])}"


def _kept(hold: Mapping[str, Any]) -> str:
    return f"{_short(hold['placed_at'])} – {_short(hold['released_at'] or hold['until'])}"


def _who(by: Mapping[str, Any]) -> str:
    return ", ".join(str(by[name]) for name in ("role", "user") if by.get(name))


def _short(at: str | None) -> str:
    return "now" if at is None else at[:16].replace("T", " ")


def _time(at: str) -> str:
    return f"{_text(_short(at))} UTC"


def _text(value: object) -> str:
    return escape(str(value))
