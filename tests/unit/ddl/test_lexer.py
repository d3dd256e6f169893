"""Tokens lose nothing, and quotes and comments mean what each engine says they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl.lexer import DIALECTS, Kind, tokenize
from lapse.ddl.literal import is_terminated, quote_backticks, quote_double, quote_text, unquote

FRAGMENTS = [
    "SELECT", "ttl", "'", "''", '"', "`", "[", "]", "$$", "$a$", "--", "-- x", "#", "/*", "*/", "/*T![ttl]", "\\", "\n",
    ";", "E'", "e'\\''", "@@", "::", ":::", "1.5e3", ".", "é", "\x00", " ", "(", ")", ",", "\ufeff", "\ud800", "1abc",
]  # fmt: skip
hostile_text = st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS)).map("".join))


@given(text=hostile_text, dialect=st.sampled_from(DIALECTS))
def test_tokens_joined_are_the_text(text: str, dialect: str) -> None:
    tokens = tokenize(text, dialect)
    assert "".join(token.text for token in tokens) == text
    assert all(text[token.start : token.end] == token.text for token in tokens)
    assert all(token.text for token in tokens)


def kinds(text: str, dialect: str) -> list[tuple[Kind, str]]:
    return [(token.kind, token.text) for token in tokenize(text, dialect) if token.kind is not Kind.SPACE]


@pytest.mark.parametrize(
    ("dialect", "text", "kind"),
    [
        ("sqlite", "'it''s; -- no comment'", Kind.STRING),
        ("sqlite", "'back\\'", Kind.STRING),
        ("sqlite", '"odd ""names"', Kind.QUOTED),
        ("sqlite", "`a``b`", Kind.QUOTED),
        ("sqlite", "[x y;]", Kind.QUOTED),
        ("postgres", "E'it\\'s'", Kind.STRING),
        ("postgres", "$$ a ; 'b $$", Kind.STRING),
        ("postgres", "$tag$ $$ ; $tag$", Kind.STRING),
        ("postgres", "/* a /* b */ ; */", Kind.COMMENT),
        ("postgres", "`created_at`", Kind.QUOTED),
        ("mysql", '"a string"', Kind.STRING),
        ("mysql", "'it\\'s'", Kind.STRING),
        ("mysql", "# comment ; '", Kind.COMMENT),
        ("mysql", "`a``b;`", Kind.QUOTED),
        ("mysql", "1abc", Kind.WORD),
        ("mysql", "1e5", Kind.NUMBER),
        ("mysql", "/*! 40101 ; */", Kind.COMMENT),
        ("postgres", "naïve_名前", Kind.WORD),
    ],
)
def test_one_token(dialect: str, text: str, kind: Kind) -> None:
    assert kinds(text, dialect) == [(kind, text)]


def test_dashes_without_a_blank_are_no_comment_in_mysql() -> None:
    assert [kind for kind, _ in kinds("5--1", "mysql")] == [
        Kind.NUMBER,
        Kind.PUNCTUATION,
        Kind.PUNCTUATION,
        Kind.NUMBER,
    ]
    assert kinds("5 --1", "sqlite")[-1] == (Kind.COMMENT, "--1")


def test_comments_do_not_nest_outside_postgresql() -> None:
    assert kinds("/* a /* b */ c", "sqlite")[-1] == (Kind.WORD, "c")


def test_parameters_are_not_dollar_quotes() -> None:
    assert Kind.STRING not in [kind for kind, _ in kinds("a = $1 and b = $2", "postgres")]


@pytest.mark.parametrize("text", ["'open", '"open', "$a$ open", "/* open", "E'open\\'", "'", "'a''"])
def test_an_open_quote_runs_to_the_end(text: str) -> None:
    tokens = tokenize(text, "postgres")
    assert len(tokens) == 1
    assert not is_terminated(tokens[0], "postgres")


@given(name=st.text())
def test_quoted_names_and_texts_read_back(name: str) -> None:
    for quoted, dialect in (
        (quote_double(name), "postgres"),
        (quote_double(name), "sqlite"),
        (quote_backticks(name), "mysql"),
        (quote_text(name), "sqlite"),
        (quote_text(name), "postgres"),
        (quote_text(name, backslashes=True), "mysql"),
    ):
        (token,) = tokenize(quoted, dialect)
        assert is_terminated(token, dialect)
        assert unquote(token, dialect) == name
