"""The web console, the JSON API and /metrics, for `lapse worker --listen` and `lapse console`."""

from __future__ import annotations

from importlib.util import find_spec

from lapse.console.options import ConsoleOptions, parse_listen
from lapse.errors import Unsupported, how_to_install

NEEDS = ("starlette", "uvicorn", "jinja2")


def require() -> None:
    """Raises Unsupported where the libraries are missing; importing this package alone needs none of them."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"the console needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=how_to_install("console"),
        )


__all__ = ["ConsoleOptions", "parse_listen", "require"]
