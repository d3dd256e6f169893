"""Builds the documentation as a site of plain HTML: one page a document, no script, nothing from elsewhere.

`python docs/build.py site` writes it. Markdown is read by the library that rich, which Lapse uses anyway, brings along.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

DOCS = Path(__file__).parent
PAGES = {
    "Begin": (
        "index.md",
        "installation.md",
        "quickstart.md",
        "choosing.md",
        "postgres.md",
        "mariadb.md",
        "tidb.md",
        "sqlite.md",
        "engines.md",
        "kv.md",
    ),
    "How to": (
        "guides/sessions.md",
        "guides/outbox.md",
        "guides/gdpr.md",
        "guides/per-tenant.md",
        "guides/django.md",
        "guides/orm.md",
        "guides/in-process.md",
        "guides/from-pg-cron.md",
        "guides/from-pg-partman.md",
        "guides/from-cockroachdb-tidb.md",
    ),
    "Run it": (
        "archive.md",
        "safety.md",
        "security.md",
        "looking-ahead.md",
        "policies-as-code.md",
        "operations.md",
        "fleet.md",
        "notifications.md",
        "ledger.md",
        "clients.md",
        "console.md",
        "metrics.md",
    ),
    "Look it up": ("sql.md", "cli.md", "glossary.md", "architecture.md", "add-an-engine.md"),
    "Figures": ("performance.md", "performance-kv.md"),
}
"""The menu: every document has its place in it, which a test checks."""

STYLE = """
:root { color-scheme: light dark; --line: #8885; --accent: light-dark(#0b6e4f, #5fd3a5); }
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; display: grid; grid-template-columns: 15rem minmax(0, 1fr); }
nav { padding: 1.5rem; border-right: 1px solid var(--line); font-size: .92rem; }
nav ul { list-style: none; padding: 0; margin: 0 0 1rem; } nav a[aria-current] { font-weight: 700; }
main { padding: 1.5rem 2rem 4rem; max-width: 56rem; } a { color: var(--accent); }
pre { overflow-x: auto; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 6px; line-height: 1.4; }
code { font: .88em ui-monospace, monospace; } img { max-width: 100%; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
@media (max-width: 50rem) { body { display: block; } nav { border-right: 0; border-bottom: 1px solid var(--line); } }
"""


def build(target: Path) -> list[Path]:
    """Writes the whole site; returns its pages."""
    written = []
    for name in (name for names in PAGES.values() for name in names):
        page = target / _html_name(name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_page(name), encoding="utf-8")
        written.append(page)
    for folder in ("images", "performance"):
        if (DOCS / folder).is_dir():
            shutil.copytree(DOCS / folder, target / folder, dirs_exist_ok=True)
    shutil.copy(DOCS / "lapse.schema.json", target / "lapse.schema.json")
    return written


def title(name: str) -> str:
    found = re.search(r"^#+ (.+)$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else name


def _page(name: str) -> str:
    text = re.sub(r"<!--.*?-->\n?", "", (DOCS / name).read_text(encoding="utf-8"))
    body = MarkdownIt("commonmark").enable("table").render(text)
    up = "../" * name.count("/")
    heading = html.escape(title(name))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{heading}</title>\n<style>{STYLE}</style>\n'
        f"<nav>{_menu(name, up)}</nav>\n<main>{_links(_anchored(body), name)}</main>\n</html>\n"
    )


def _menu(current: str, up: str) -> str:
    parts = []
    for heading, names in PAGES.items():
        items = "".join(
            f'<li><a href="{up}{_html_name(name)}"{" aria-current=page" if name == current else ""}>'
            f"{html.escape(title(name))}</a></li>"
            for name in names
        )
        parts.append(f"<strong>{heading}</strong><ul>{items}</ul>")
    return "".join(parts)


def _anchored(body: str) -> str:
    """Headings can be linked to, by their words."""

    def anchor(match: re.Match[str]) -> str:
        words = re.sub(r"<[^>]+>", "", match[2])
        return f'<h{match[1]} id="{slug(html.unescape(words))}">{match[2]}</h{match[1]}>'

    return re.sub(r"<h([1-6])>(.*?)</h\1>", anchor, body)


def slug(words: str) -> str:
    return re.sub(r"[^\w]+", "-", words.lower()).strip("-")


def _links(body: str, name: str) -> str:
    """Documents become pages; what is outside the site, such as a file of the repository, is named and not linked."""
    folder = (DOCS / name).parent

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if target.startswith(("http:", "https:")) or not target:
            return match[0]
        inside = (folder / target).resolve().is_relative_to(DOCS.resolve())
        if not inside:
            return match[2]
        page = _html_name(target) + (f"#{anchor}" if anchor else "")
        return f'<a href="{page}">{match[2]}</a>'

    return re.sub(r'<a href="([^"]*)">(.*?)</a>', link, body, flags=re.DOTALL)


def _html_name(name: str) -> str:
    return re.sub(r"\.md$", ".html", name)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else DOCS.parent / "site"))
