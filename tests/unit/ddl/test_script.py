"""A `;` cuts only where a statement ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl.lexer import DIALECTS
from lapse.ddl.script import is_complete, split

ONE_STATEMENT = [
    ("sqlite", "SELECT ';' AS \"a;b\", [c;d], `e;f` -- ; \n /* ; */"),
    ("sqlite", "CREATE TRIGGER x AFTER INSERT ON t BEGIN UPDATE t SET a = CASE WHEN b THEN 1 END; DELETE FROM u; END"),
    ("sqlite", "CREATE TEMP TRIGGER x BEFORE DELETE ON t BEGIN SELECT 1; END"),
    ("postgres", "DO $$ BEGIN PERFORM 1; END $$"),
    ("postgres", "CREATE FUNCTION f() RETURNS int AS $f$ SELECT 1; $f$ LANGUAGE sql"),
    ("postgres", "CREATE FUNCTION f(a int) RETURNS int BEGIN ATOMIC SELECT CASE a WHEN 1 THEN 2 END; SELECT 3; END"),
    ("postgres", "CREATE RULE r AS ON INSERT TO t DO ALSO (DELETE FROM a; DELETE FROM b)"),
    ("postgres", "SELECT E'\\';' , U&'\\0061;'"),
    (
        "mysql",
        "CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW BEGIN IF NEW.a THEN SET @x = 1; END IF; SET @y = 2; END",
    ),
    ("mysql", "CREATE PROCEDURE p() BEGIN WHILE x DO SELECT CASE a WHEN 1 THEN 2 END; END WHILE; END"),
    ("mysql", "CREATE PROCEDURE p(a INT) IF a > 1 THEN SELECT 1; END IF"),
    ("mysql", "CREATE DEFINER=`a;b`@`%` EVENT e ON SCHEDULE EVERY 1 DAY DO BEGIN DELETE FROM t; DELETE FROM u; END"),
    (
        "mysql",
        "CREATE PROCEDURE p() BEGIN CASE a WHEN 1 THEN SELECT 1; ELSE BEGIN END; END CASE; SELECT t.end FROM t; END",
    ),
    ("mysql", "CREATE DEFINER = CURRENT_USER() PROCEDURE p() BEGIN SELECT 1; END"),
    ("mysql", "BEGIN NOT ATOMIC SELECT 1; SELECT 2; END"),
    ("mysql", "CREATE PROCEDURE p() BEGIN SELECT a FROM (SELECT 1) x FOR UPDATE; END"),
    ("mysql", "SELECT 'a\\';' , \"b;\" # ; \n"),
]


@pytest.mark.parametrize(("dialect", "text"), ONE_STATEMENT)
def test_one_statement(dialect: str, text: str) -> None:
    pieces = split(f"{text};\nSELECT 2;", dialect)
    assert [piece.text for piece in pieces] == [text.strip(), "SELECT 2"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_transactions_are_not_bodies(dialect: str) -> None:
    pieces = split("BEGIN; DELETE FROM t; END; COMMIT", dialect)
    assert [piece.text for piece in pieces] == ["BEGIN", "DELETE FROM t", "END", "COMMIT"]


def test_a_comment_belongs_to_the_statement_after_it() -> None:
    pieces = split("SELECT 1; -- about two\n/* really */ SELECT 2 -- tail\n;\n\n-- the end\n", "sqlite")
    assert [piece.text for piece in pieces] == [
        "SELECT 1",
        "-- about two\n/* really */ SELECT 2 -- tail",
        "-- the end",
    ]
    assert [piece.place for piece in pieces] == [(1, 1), (2, 14), (5, 1)]


def test_empty_statements_are_nothing() -> None:
    assert split(" ;; \n ; ", "sqlite") == []


@given(text=st.text(alphabet=";'\"`$-/*#[]\\ \nabcEN()"), dialect=st.sampled_from(DIALECTS))
def test_pieces_are_slices_in_order(text: str, dialect: str) -> None:
    end = 0
    for piece in split(text, dialect):
        assert text[piece.start : piece.end].rstrip() == piece.text
        assert text[end : piece.start].strip(" \n;") == ""
        end = piece.end
    assert text[end:].strip(" \n;") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1;", True),
        ("SELECT 1; -- that was all", True),
        ("SELECT 1", False),
        ("SELECT 'a;", False),
        ("SELECT 1 -- not the end;", False),
        ("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1;", False),
        ("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END;", True),
        ("", False),
    ],
)
def test_is_complete(text: str, expected: bool) -> None:
    assert is_complete(text, "sqlite") is expected


DUMP = """\
-- MariaDB dump
/*!40101 SET NAMES utf8mb4 */;
CREATE TABLE `t` (`a` int, `delimiter` int);
-- the trigger that Lapse made
DELIMITER ;;
/*!50003 CREATE*/ /*!50017 DEFINER=`a`@`%`*/ /*!50003 TRIGGER x BEFORE UPDATE ON t FOR EACH ROW BEGIN SET @a=1; END */;;
CREATE PROCEDURE p() BEGIN SELECT ';;', `a;;b` /* ;; */; SELECT 2; END;;
DELIMITER ;
INSERT INTO t VALUES (1, 2);
delimiter $$
CREATE PROCEDURE q() BEGIN SELECT 1; END$$
$$
SELECT 'delimiter ;'$$
DELIMITER //
SELECT 4 / 2//
SELECT 5"""


def test_delimiter() -> None:
    found = split(DUMP, "mysql")
    assert [piece.text for piece in found] == [
        "-- MariaDB dump\n/*!40101 SET NAMES utf8mb4 */",
        "CREATE TABLE `t` (`a` int, `delimiter` int)",
        DUMP.split("\n")[5].removesuffix(";;"),
        "CREATE PROCEDURE p() BEGIN SELECT ';;', `a;;b` /* ;; */; SELECT 2; END",
        "INSERT INTO t VALUES (1, 2)",
        "CREATE PROCEDURE q() BEGIN SELECT 1; END",
        "SELECT 'delimiter ;'",
        "SELECT 4 / 2",
        "SELECT 5",
    ]
    assert [piece.line for piece in found] == [2, 3, 6, 7, 9, 11, 13, 15, 16]
    assert found[0].verb == found[2].verb == "/*!"


@pytest.mark.parametrize("text", ["DELIMITER //", "delimiter //\n", "# note\nDELIMITER $$\n  "])
def test_a_delimiter_alone_is_no_statement(text: str) -> None:
    assert split(text, "mysql") == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_delimiter_is_a_word_elsewhere(dialect: str) -> None:
    assert [piece.text for piece in split("DELIMITER //\nSELECT 1; SELECT 2", dialect)] == [
        "DELIMITER //\nSELECT 1",
        "SELECT 2",
    ]


def test_complete_under_another_delimiter() -> None:
    assert not is_complete("DELIMITER //\nSELECT 1;", "mysql")
    assert is_complete("DELIMITER //\nSELECT 1;//", "mysql")


@given(st.text(alphabet="dD;/ \n'`$eE*!-", max_size=30))
def test_delimiters_lose_and_repeat_nothing(text: str) -> None:
    text = f"DELIMITER //\n{text}\nDELIMITER ;\n{text}"
    ends = [(piece.start, piece.end) for piece in split(text, "mysql")]
    assert all(start < end for start, end in ends)
    assert ends == sorted(ends)
    assert all(first[1] <= second[0] for first, second in pairwise(ends))
