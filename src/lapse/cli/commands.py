"""The commands of `lapse`: where each is, under which heading it is listed, and what it says of itself there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """`summary` is the first paragraph of its help, so that `lapse --help` need not load what commands work with."""

    name: str
    module: str
    panel: str
    summary: str


COMMANDS = (
    Command(
        name="demo",
        module="demo",
        panel="Start here",
        summary="Show it all in a few seconds: declare, fill, preview, run, look. Uses a scratch file and leaves "
        "nothing behind.",
    ),
    Command(
        name="sql",
        module="sql",
        panel="Start here",
        summary="Run SQL, with the TTL statements of CockroachDB, TiDB and MyRocks, on any engine.",
    ),
    Command(
        name="preview",
        module="preview",
        panel="Expire rows",
        summary="Show what a run would do to a table now, and what expires in the coming days. Changes nothing.",
    ),
    Command(
        name="run",
        module="run",
        panel="Expire rows",
        summary="Delete expired rows once: every table that is due, or one table now.",
    ),
    Command(
        name="worker",
        module="worker",
        panel="Expire rows",
        summary="Keep running: start each table's job when it is due, until SIGTERM or Ctrl-C.",
    ),
    Command(
        name="status",
        module="status",
        panel="Look",
        summary="List the tables with a TTL policy: when their rows expire, what is going on, what the last job did.",
    ),
    Command(
        name="jobs",
        module="jobs",
        panel="Look",
        summary="List the jobs that are active now: waiting, running, paused or being cancelled.",
    ),
    Command(
        name="history",
        module="history",
        panel="Look",
        summary="List jobs, newest first, with what became of them and how many rows they deleted.",
    ),
    Command(
        name="doctor",
        module="doctor",
        panel="Look",
        summary="Look for what is wrong or could be better, each with the command that fixes it.",
    ),
    Command(
        name="console",
        module="console",
        panel="Look",
        summary="Serve the web console without working: look at what the workers of this database do, until Ctrl-C.",
    ),
    Command(
        name="init",
        module="init",
        panel="Policies as code",
        summary="Write a first file of policies: those there are, and proposals for other tables, commented out.",
    ),
    Command(
        name="plan",
        module="plan",
        panel="Policies as code",
        summary="Compare a file of policies with the database and show what `lapse apply` "
        "would change. Changes nothing.",
    ),
    Command(
        name="apply",
        module="apply",
        panel="Policies as code",
        summary="Make the database have the policies of a file, as `lapse plan` shows. Deletes no rows: that is "
        "for the next run.",
    ),
    Command(
        name="lint",
        module="lint",
        panel="Policies as code",
        summary="Check a file of policies, and that it has a policy, or a reason for having none, for every "
        "table of the database.",
    ),
    Command(
        name="pause",
        module="control",
        panel="Control",
        summary="Stop deleting from a table (sets ttl_pause), or pause one job; `lapse resume` goes on from there.",
    ),
    Command(
        name="resume",
        module="control",
        panel="Control",
        summary="Go on with a table, or a job, that was paused, or confirm a first run that waits for confirmation.",
    ),
    Command(
        name="cancel",
        module="control",
        panel="Control",
        summary="Cancel the active jobs of a table, or one job. The policy stays: the next run deletes what is left.",
    ),
    Command(
        name="hold",
        module="holds",
        panel="Control",
        summary="Keep rows from being deleted, whatever has expired, until they are released.",
    ),
    Command(
        name="holds",
        module="holds",
        panel="Look",
        summary="List the holds: which rows of which table are kept, since when, by whom and why.",
    ),
    Command(
        name="ledger",
        module="ledger",
        panel="Look",
        summary="List who did what to policies, holds, settings and rows, newest first, or verify that nothing of it "
        "was changed.",
    ),
    Command(
        name="certificate",
        module="certificate",
        panel="Look",
        summary="State, signed, what was promised and deleted in a time and what is left now, or check such a "
        "statement.",
    ),
    Command(
        name="release",
        module="holds",
        panel="Control",
        summary="End a hold: rows that have expired go with the next job.",
    ),
    Command(
        name="archive",
        module="archive",
        panel="Look",
        summary="List what is in the archives: for each job how many rows, from when, and where.",
    ),
    Command(
        name="restore",
        module="archive",
        panel="Control",
        summary="Put archived rows back into their table, and hold them there for a while.",
    ),
    Command(
        name="undo",
        module="archive",
        panel="Control",
        summary="Restore everything that one job has deleted, from the archive of its table.",
    ),
    Command(
        name="accept",
        module="accept",
        panel="Control",
        summary="Accept the policy that a table's comment proposes.",
    ),
    Command(
        name="settings",
        module="settings",
        panel="Control",
        summary="Show all settings, show one, or set one. Changes reach running workers at once.",
    ),
    Command(
        name="convert",
        module="convert",
        panel="More",
        summary="Write the TTL clauses of an SQL script in another dialect; everything else stays byte for byte.",
    ),
    Command(
        name="bench",
        module="bench",
        panel="More",
        summary="Compare Lapse with one DELETE, the usual LIMIT loop and the loop of the reference documents, on "
        "your server.",
    ),
    Command(
        name="kv",
        module="kv",
        panel="More",
        summary="Key-value stores with per-row TTL: slatedb:/path, slatedb:s3://bucket/prefix, rocksdb:/path.",
    ),
)
