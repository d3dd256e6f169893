"""Writes a first `lapse.toml`: the policies there are, and proposals that do nothing until they are uncommented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from lapse.app.policyfile.candidates import SuggestedPolicy
from lapse.app.policyfile.reading import file_keys
from lapse.catalog.policies import StoredPolicy
from lapse.model.policy import Policy
from lapse.model.table import TableName

HEAD = """\
# When rows expire, for `lapse plan` and `lapse apply`. Whatever is commented out does nothing.
# A table without TTL says why: exclude = "a reason". Then `lapse lint` is content.

[defaults]
# ttl_job_cron = "@hourly"

# [environments.production]
# url = "$DATABASE_URL"
"""


def write_file(stored: Sequence[StoredPolicy], candidates: Sequence[SuggestedPolicy]) -> str:
    lines = [HEAD.rstrip()]
    for each in stored:
        lines += ["", *_policy(each.table, each.policy)]
    for candidate in sorted(candidates, key=lambda each: (not each.keys, -each.rows)):
        lines += ["", *_proposal(candidate)]
    return "\n".join(lines) + "\n"


def _policy(name: TableName, policy: Policy) -> Iterator[str]:
    lines = [f"[tables.{_key(str(name))}]", *_assignments(file_keys(policy))]
    if policy.partitions:
        yield "# Rules of single partitions stay in SQL: such a policy cannot be written here."
        lines = [f"# {line}" for line in lines]
    yield from lines


def _proposal(candidate: SuggestedPolicy) -> Iterator[str]:
    index = "" if candidate.indexed or not candidate.keys else "; no index on it"
    rows = "1 row" if candidate.rows == 1 else f"{candidate.rows:,} rows"
    yield f"# About {rows}; {candidate.why}{index}."
    yield f"# [tables.{_key(str(candidate.table))}]"
    if candidate.keys:
        yield from (f"# {line}" for line in _assignments(candidate.keys))
    else:
        yield '# exclude = "say why its rows stay"'


def _assignments(keys: Mapping[str, str]) -> list[str]:
    return [f"{key} = {_value(key, text)}" for key, text in keys.items()]


def _value(key: str, text: str) -> str:
    """A string, except for whole numbers: TOML has those, and durations are never bare."""
    return text if re.fullmatch(r"\d+", text) and key.startswith("ttl_") else json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)
