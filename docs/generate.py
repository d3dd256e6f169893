"""Writes the parts of the documentation that the code knows best: modules, parameters, settings, commands.

`make docs` writes them between the markers; a test says when they are out of date.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from lapse.app.policyfile import json_schema
from lapse.cli import app
from lapse.metrics import DEFINITIONS
from lapse.model.parameters import PARAMETERS
from lapse.model.settings import SETTINGS

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "lapse"


def modules() -> str:
    """One sentence a module: the first of its docstring."""
    lines: list[str] = []
    for folder in (SOURCE, *sorted(path for path in SOURCE.rglob("*") if path.is_dir())):
        files = sorted(folder.glob("*.py"), key=lambda path: (path.name != "__init__.py", path.name))
        if files:
            lines += ["", f"### {_dotted(folder)}", ""]
            lines += [f"- `{_label(path)}`: {_sentence(path)}" for path in files]
    return "\n".join(lines[1:])


def _dotted(folder: Path) -> str:
    return ".".join(("lapse", *folder.relative_to(SOURCE).parts))


def _label(path: Path) -> str:
    return _dotted(path.parent) if path.name == "__init__.py" else path.stem


def _sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def parameters() -> str:
    rows = [
        f"| `{each.name}` | {_escaped(each.allowed)} | {each.default or '-'} | {_escaped(each.help)} |"
        for each in PARAMETERS.values()
    ]
    return "\n".join(["| parameter | allowed | default | meaning |", "|---|---|---|---|", *rows])


def settings() -> str:
    rows = [
        f"| `{setting.name}` | {_escaped(setting.allowed)} | {setting.default} | {_escaped(setting.help)} |"
        for setting in SETTINGS.values()
    ]
    return "\n".join(["| setting | allowed | default | meaning |", "|---|---|---|---|", *rows])


def metrics() -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {each.origin} | {', '.join(f'`{label}`' for label in each.labels) or '-'} "
        f"| {_escaped(each.help)} |"
        for each in DEFINITIONS
    ]
    return "\n".join(["| metric | type | of the | labels | meaning |", "|---|---|---|---|---|", *rows])


def commands() -> str:
    group: Any = typer.main.get_command(app)
    return "\n".join(line for name, command in _leaves("lapse", group) for line in _command(name, command)).rstrip()


def _leaves(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(f"{prefix} {name}", command)
        else:
            yield f"{prefix} {name}", command


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    yield " ".join(("   ", name, *map(_usage, arguments), *(["[OPTIONS]"] if options else [])))
    yield ""
    text, _, example = (command.help or "").partition("Example:")
    yield from text.strip().splitlines()
    yield ""
    yield f"    {' '.join(example.split()).strip('`')}"
    yield ""
    if options:
        yield "| option | meaning |"
        yield "|---|---|"
        for option in options:
            flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            yield f"| {flags} | {_escaped(option.help or '')} |"
        yield ""


def _usage(argument: Any) -> str:
    """Only the table cannot be left out, though it moves up where the URL is."""
    name = argument.metavar or argument.name.upper()
    return str(name) if name == "TABLE" else f"[{name}]"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "architecture.md": {"modules": modules},
    "sql.md": {"parameters": parameters, "settings": settings},
    "cli.md": {"commands": commands},
    "metrics.md": {"metrics": metrics},
}


def written(name: str) -> str:
    """The document with its generated parts as they should be."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for part, write in PARTS[name].items():
        begin, end = f"<!-- {part}: written by make docs -->", f"<!-- end of {part} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{name} has no part {part!r}")
        text = f"{before}{begin}\n\n{write()}\n\n{end}{after}"
    return text


def schema() -> str:
    """What editors check `lapse.toml` with."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    for name in PARTS:
        (DOCS / name).write_text(written(name), encoding="utf-8")
    (DOCS / "lapse.schema.json").write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
