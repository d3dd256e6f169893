"""Tokens lose nothing, and quotes and comments mean what each engine says they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl.lexer import DIALECTS, TokenKind, tokenize
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


def kinds(text: str, dialect: str) -> list[tuple[TokenKind, str]]:
    return [(token.kind, token.text) for token in tokenize(text, dialect) if token.kind is not TokenKind.SPACE]


@pytest.mark.parametrize(
    ("dialect", "text", "kind"),
    [
        ("sqlite", "'it''s; -- no comment'", TokenKind.STRING),
        ("sqlite", "'back\\'", TokenKind.STRING),
        ("sqlite", '"odd ""names"', TokenKind.QUOTED),
        ("sqlite", "`a``b`", TokenKind.QUOTED),
        ("sqlite", "[x y;]", TokenKind.QUOTED),
        ("postgres", "E'it\\'s'", TokenKind.STRING),
        ("postgres", "$$ a ; 'b $$", TokenKind.STRING),
        ("postgres", "$tag$ $$ ; $tag$", TokenKind.STRING),
        ("postgres", "/* a /* b */ ; */", TokenKind.COMMENT),
        ("postgres", "`created_at`", TokenKind.QUOTED),
        ("mysql", '"a string"', TokenKind.STRING),
        ("mysql", "'it\\'s'", TokenKind.STRING),
        ("mysql", "# comment ; '", TokenKind.COMMENT),
        ("mysql", "`a``b;`", TokenKind.QUOTED),
        ("mysql", "1abc", TokenKind.WORD),
        ("mysql", "1e5", TokenKind.NUMBER),
        ("mysql", "/*! 40101 ; */", TokenKind.COMMENT),
        ("postgres", "naïve_名前", TokenKind.WORD),
    ],
)
def test_one_token(dialect: str, text: str, kind: TokenKind) -> None:
    assert kinds(text, dialect) == [(kind, text)]


def test_dashes_without_a_blank_are_no_comment_in_mysql() -> None:
    assert [kind for kind, _ in kinds("5--1", "mysql")] == [
        TokenKind.NUMBER,
        TokenKind.PUNCTUATION,
        TokenKind.PUNCTUATION,
        TokenKind.NUMBER,
    ]
    assert kinds("5 --1", "sqlite")[-1] == (TokenKind.COMMENT, "--1")


def test_comments_do_not_nest_outside_postgresql() -> None:
    assert kinds("/* a /* b */ c", "sqlite")[-1] == (TokenKind.WORD, "c")


def test_parameters_are_not_dollar_quotes() -> None:
    assert TokenKind.STRING not in [kind for kind, _ in kinds("a = $1 and b = $2", "postgres")]


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
