"""Passwords are kept out of everything that is shown."""

from __future__ import annotations

import pytest

from lapse.model.secret import mask


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:s3cret@host/db", "postgresql://me:***@host/db"),
        ("cannot reach mysql://me:a:b@c@host:3306/db now", "cannot reach mysql://me:***@host:3306/db now"),
        ("postgresql://host/db?user=me&password=s3cret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:///app.db", "sqlite:///app.db"),
    ],
)
def test_urls(text: str, expected: str) -> None:
    assert mask(text) == expected


def test_passwords_in_a_driver_text() -> None:
    url = "postgresql://me:s%40cret@host/db"
    assert mask("login of me with 's@cret' failed (s%40cret)", url) == "login of me with '***' failed (***)"


def test_a_short_password_does_not_eat_words() -> None:
    assert mask("access denied: a", "mysql://me:a@host/db") == "access denied: ***"
